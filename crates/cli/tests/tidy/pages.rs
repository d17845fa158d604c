//! Rules of the documents: links lead to a file and a heading, and decisions are numbered and
//! indexed.

use super::{Text, none, root, texts};
use std::collections::BTreeSet;

/// Returns the links of a page with their lines, counted from 0: `](target)` outside of code.
fn links(text: &str) -> Vec<(usize, String)> {
    let (mut out, mut fenced) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Every second piece between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for part in prose.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                let target = target.split_whitespace().next().unwrap_or("");
                out.push((i, target.to_string()));
            }
        }
    }
    out
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Complains of a link to a file or heading that does not exist. `read` returns the text of a path
/// from the root.
fn broken_links(t: &Text, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut out = Vec::new();
    for (i, link) in links(&t.text) {
        if link.contains("://") || link.starts_with("mailto:") || link.is_empty() {
            continue;
        }
        let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
        let mut place: Vec<&str> = t.path.split('/').collect();
        if !file.is_empty() {
            place.pop();
            for part in file.split('/') {
                match part {
                    ".." => {
                        place.pop();
                    }
                    "." | "" => {}
                    part => place.push(part),
                }
            }
        }
        match read(&place.join("/")) {
            None => out.push(t.complaint(i, &format!("the link {link:?} leads nowhere"))),
            Some(text) => {
                let is_there = text
                    .lines()
                    .any(|l| l.starts_with('#') && anchor(l) == heading);
                if !heading.is_empty() && !is_there {
                    out.push(t.complaint(i, &format!("no heading for the link {link:?}")));
                }
            }
        }
    }
    out
}

/// Complains of a decision without a number of its own, or without a line in the index.
fn decisions(pages: &[Text]) -> Vec<String> {
    let directory = "docs/decisions/";
    let of = |t: &&Text| t.path.starts_with(directory) && t.path != format!("{directory}README.md");
    let index = pages
        .iter()
        .find(|t| t.path == format!("{directory}README.md"));
    let index = index.map_or("", |t| &t.text);
    let (mut out, mut numbers) = (Vec::new(), BTreeSet::new());
    for t in pages.iter().filter(of) {
        let name = &t.path[directory.len()..];
        let number = name.split('-').next().unwrap_or("");
        if number.len() != 4 || !number.bytes().all(|b| b.is_ascii_digit()) {
            out.push(t.complaint(0, "a decision is named NNNN-title.md"));
        }
        if !numbers.insert(number.to_string()) {
            out.push(t.complaint(0, "another decision has this number"));
        }
        if !index.contains(&format!("({name})")) {
            out.push(t.complaint(0, "this decision is not in docs/decisions/README.md"));
        }
    }
    out
}

#[test]
fn links_in_the_documents_have_targets() {
    let read = |path: &str| {
        let path = root().join(path);
        if path.is_dir() {
            return Some(String::new());
        }
        std::fs::read(path)
            .ok()
            .map(|b| String::from_utf8_lossy(&b).into_owned())
    };
    let pages = texts(".md");
    none(
        pages
            .iter()
            .flat_map(|t| broken_links(t, &read))
            .chain(decisions(&pages))
            .collect(),
    );
}

/// Each rule complains of a text that breaks it.
#[test]
fn the_page_rules_report_violations() {
    let read = |path: &str| (path == "docs/b.md").then(|| "# A `b`, and C".to_string());
    for (text, n) in [
        ("[b](b.md)", 0),
        ("[b](b.md#a-b-and-c)", 0),
        ("[b](../docs/b.md)", 0),
        ("`[b](c.md)`", 0),
        ("[b](https://c.md)", 0),
        ("[b](c.md)", 1),
        ("[b](b.md#d)", 1),
        ("[b](../b.md)", 1),
    ] {
        let found = broken_links(&Text::new("docs/a.md", text), &read);
        assert_eq!(found.len(), n, "{text}: {found:?}");
    }
    let pages = [
        Text::new("docs/decisions/README.md", "[1](0001-a.md)"),
        Text::new("docs/decisions/0001-a.md", ""),
        Text::new("docs/decisions/0001-b.md", ""),
    ];
    assert_eq!(decisions(&pages[..2]).len(), 0);
    assert_eq!(
        decisions(&pages).len(),
        2,
        "the number is taken, and not indexed"
    );
}
