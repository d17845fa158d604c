//! Checks that a text is JSON.

/// Returns `Ok` if the text is one JSON value of at most 200 nested arrays and objects, otherwise
/// the byte where it ceases to be one.
pub(crate) fn check(text: &str) -> Result<(), usize> {
    let mut checker = Checker {
        bytes: text.as_bytes(),
        at: 0,
    };
    checker.blanks();
    checker.value(0)?;
    checker.blanks();
    match checker.at == checker.bytes.len() {
        true => Ok(()),
        false => Err(checker.at),
    }
}

struct Checker<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl Checker<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> Result<(), usize> {
        match self.peek() == Some(byte) {
            true => {
                self.at += 1;
                Ok(())
            }
            false => Err(self.at),
        }
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Result<(), usize> {
        if depth > 200 {
            return Err(self.at);
        }
        match self.peek() {
            Some(b'{') => self.items(b'}', depth, true),
            Some(b'[') => self.items(b']', depth, false),
            Some(b'"') => self.string(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => self.number(),
        }
    }

    fn items(&mut self, end: u8, depth: usize, named: bool) -> Result<(), usize> {
        self.at += 1;
        self.blanks();
        if self.eat(end).is_ok() {
            return Ok(());
        }
        loop {
            self.blanks();
            if named {
                self.string()?;
                self.blanks();
                self.eat(b':')?;
                self.blanks();
            }
            self.value(depth + 1)?;
            self.blanks();
            if self.eat(b',').is_err() {
                return self.eat(end);
            }
        }
    }

    fn word(&mut self, word: &str) -> Result<(), usize> {
        match self.bytes[self.at..].starts_with(word.as_bytes()) {
            true => {
                self.at += word.len();
                Ok(())
            }
            false => Err(self.at),
        }
    }

    fn string(&mut self) -> Result<(), usize> {
        self.eat(b'"')?;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                            self.at += 1;
                        }
                        Some(b'u') => {
                            let digits = self.bytes.get(self.at + 1..self.at + 5);
                            if !digits.is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit)) {
                                return Err(self.at);
                            }
                            self.at += 5;
                        }
                        _ => return Err(self.at),
                    }
                }
                Some(byte) if byte >= 0x20 => self.at += 1,
                _ => return Err(self.at),
            }
        }
    }

    fn digits(&mut self) -> Result<(), usize> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start {
            Ok(())
        } else {
            Err(self.at)
        }
    }

    fn number(&mut self) -> Result<(), usize> {
        let _ = self.eat(b'-');
        if self.eat(b'0').is_err() {
            self.digits()?;
        }
        if self.eat(b'.').is_ok() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }
}
