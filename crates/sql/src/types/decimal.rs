//! [`Decimal`]: a number in decimal digits, for rounding as NUMERIC does.

use crate::value::Value;

/// A number in decimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decimal {
    negative: bool,
    /// Digits from 0 to 9, the highest first.
    digits: Vec<u8>,
    /// How many of the digits are before the point; may be negative or beyond the digits.
    point: i32,
}

impl Decimal {
    /// Returns the decimal of an integer.
    pub(crate) fn from_integer(n: i64) -> Decimal {
        let digits: Vec<u8> = n
            .unsigned_abs()
            .to_string()
            .bytes()
            .map(|b| b - b'0')
            .collect();
        let point = digits.len() as i32;
        Decimal {
            negative: n < 0,
            digits,
            point,
        }
        .trimmed()
    }

    /// Returns the shortest decimal that names the floating-point number, or `None` for NaN and
    /// infinity.
    pub(crate) fn from_real(x: f64) -> Option<Decimal> {
        x.is_finite()
            .then(|| Decimal::parse(&format!("{x:e}")))
            .flatten()
    }

    /// Reads `[+-]digits[.digits][e[+-]digits]`. The exponent has an absolute value below 10,000.
    pub(crate) fn parse(text: &str) -> Option<Decimal> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(at) => (&rest[..at], rest[at + 1..].parse::<i32>().ok()?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        let any = !whole.is_empty() || !fraction.is_empty();
        if !any || !all_digits(whole) || !all_digits(fraction) || exponent.abs() >= 10_000 {
            return None;
        }
        let digits = whole
            .bytes()
            .chain(fraction.bytes())
            .map(|b| b - b'0')
            .collect();
        let point = i32::try_from(whole.len()).ok()? + exponent;
        Some(
            Decimal {
                negative,
                digits,
                point,
            }
            .trimmed(),
        )
    }

    /// Takes zeros off both ends.
    fn trimmed(mut self) -> Decimal {
        let leading = self.digits.iter().take_while(|d| **d == 0).count();
        self.digits.drain(..leading);
        self.point -= leading as i32;
        while self.digits.last() == Some(&0) {
            self.digits.pop();
        }
        if self.digits.is_empty() {
            self.negative = false;
            self.point = 0;
        }
        self
    }

    /// Returns the number of digits before the point.
    pub(crate) fn integer_digits(&self) -> i32 {
        self.point.max(0)
    }

    /// Rounds half away from zero to a number of digits after the point, which may be negative.
    pub(crate) fn round(mut self, scale: i32) -> Decimal {
        let keep = self.point.saturating_add(scale);
        if keep < 0 {
            self.digits.clear();
            return self.trimmed();
        }
        let keep = keep as usize;
        if keep >= self.digits.len() {
            return self;
        }
        let up = self.digits[keep] >= 5;
        self.digits.truncate(keep);
        if up {
            let mut at = keep;
            loop {
                if at == 0 {
                    self.digits.insert(0, 1);
                    self.point += 1;
                    break;
                }
                at -= 1;
                if self.digits[at] < 9 {
                    self.digits[at] += 1;
                    break;
                }
                self.digits[at] = 0;
            }
        }
        self.trimmed()
    }

    /// Cuts to a number of digits after the point, which may be negative.
    pub(crate) fn truncate(mut self, scale: i32) -> Decimal {
        let keep = self.point.saturating_add(scale).max(0) as usize;
        self.digits.truncate(keep);
        self.trimmed()
    }

    /// Returns the value as NUMERIC keeps it: an integer if it is whole and fits.
    pub(crate) fn to_value(&self) -> Value {
        let text = self.text(0);
        match text.parse::<i64>() {
            Ok(n) => Value::Integer(n),
            Err(_) => match text.parse::<f64>() {
                // More digits than a floating-point number has: it may be whole all the same.
                Ok(x) if x.fract() == 0.0 && x.abs() < 9.2e18 => Value::Integer(x as i64),
                Ok(x) => Value::Real(x),
                Err(_) => Value::Real(f64::MAX),
            },
        }
    }

    /// Returns the digits with at least `scale` of them after the point.
    pub(crate) fn text(&self, scale: usize) -> String {
        let mut out = String::new();
        if self.negative {
            out.push('-');
        }
        let digit = |at: i32| -> char {
            let digit = usize::try_from(at).ok().and_then(|at| self.digits.get(at));
            char::from(b'0' + digit.copied().unwrap_or(0))
        };
        if self.point <= 0 {
            out.push('0');
        }
        out.extend((0..self.point.max(0)).map(digit));
        let behind = (self.digits.len() as i32 - self.point).max(0) as usize;
        let behind = behind.max(scale);
        if behind > 0 {
            out.push('.');
            out.extend((self.point..self.point + behind as i32).map(digit));
        }
        out
    }
}
