//! Charts as inline SVG, drawn for a width of 360 units. The page scales them.

use std::fmt::Write;

/// Width of every chart, in its own units.
const WIDTH: f64 = 360.0;
/// The frame of lines: left, top, right, bottom, in units of the chart.
const FRAME: (f64, f64, f64, f64) = (46.0, 8.0, 352.0, 168.0);

/// Returns the text with HTML's special characters escaped.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns a number with three significant digits and k, M or G.
pub fn short(x: f64) -> String {
    let (x, unit) = match x.abs() {
        a if a >= 1e9 => (x / 1e9, "G"),
        a if a >= 1e6 => (x / 1e6, "M"),
        a if a >= 1e4 => (x / 1e3, "k"),
        _ => (x, ""),
    };
    let digits = match x.abs() {
        0.0 => 0,
        a if a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        a if a >= 1.0 => 2,
        _ => 3,
    };
    format!("{x:.digits$}{unit}")
}

/// A bar: its label, colour class and value, and the lowest and highest of its runs.
pub struct Bar {
    /// Label in front of the bar.
    pub label: String,
    /// CSS class of the colour.
    pub class: String,
    /// Length of the bar.
    pub value: f64,
    /// Lowest and highest value.
    pub range: Option<(f64, f64)>,
}

/// Draws bars, one below the other.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    let longest = bars
        .iter()
        .map(|b| b.range.map_or(b.value, |r| r.1.max(b.value)))
        .fold(0.0, f64::max)
        .max(1e-12);
    let (left, room) = (96.0, 200.0);
    let height = 22.0 * bars.len() as f64 + 6.0;
    let mut out = open(title, height);
    for (i, bar) in bars.iter().enumerate() {
        let y = 22.0 * i as f64 + 4.0;
        let x = |v: f64| left + v / longest * room;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{}\" x=\"{left}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"15\"/>",
            left - 5.0,
            y + 11.5,
            escape(&bar.label),
            bar.class,
            (x(bar.value) - left).max(0.5),
        );
        let mut end = x(bar.value);
        if let Some((low, high)) = bar.range {
            let _ = write!(
                out,
                "<path class=\"axis\" d=\"M{:.1} {m:.1}H{:.1}\"/>",
                x(low),
                x(high),
                m = y + 7.5
            );
            end = end.max(x(high));
        }
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            end + 4.0,
            y + 11.5,
            short(bar.value)
        );
    }
    out.push_str("</svg>");
    out
}

/// A line: its colour class and its points.
pub struct Line {
    /// CSS class of the colour.
    pub class: String,
    /// The points as (x, y), in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// The ticks of an axis: positions and labels.
pub type Ticks = Vec<(f64, String)>;

/// Draws lines in a frame. If `log` is true, y is logarithmic, and values not above 0 are left out.
pub fn lines(title: &str, lines: &[Line], log: bool, x_ticks: &Ticks) -> String {
    let (left, top, right, bottom) = FRAME;
    let all = || {
        lines
            .iter()
            .flat_map(|l| &l.points)
            .filter(|p| !log || p.1 > 0.0)
    };
    let least = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(f64::NEG_INFINITY, f64::max);
    if all().next().is_none() {
        return String::new();
    }
    let (x0, x1) = (least(|p| p.0), most(|p| p.0));
    let scale = |y: f64| if log { y.log10() } else { y };
    let (y0, y1) = match log {
        // The axis has whole decades, at least one.
        true => {
            let low = scale(least(|p| p.1)).floor();
            (low, scale(most(|p| p.1)).ceil().max(low + 1.0))
        }
        false => (0.0, most(|p| p.1).max(1e-12) * 1.05),
    };
    let px = |x: f64| left + (x - x0) / (x1 - x0).max(1e-12) * (right - left);
    let py = |y: f64| bottom - (scale(y) - y0) / (y1 - y0) * (bottom - top);
    let mut out = open(title, bottom + 18.0);
    let y_ticks: Vec<f64> = match log {
        true => (y0 as i32..=y1 as i32).map(|d| 10f64.powi(d)).collect(),
        false => (0..=4).map(|i| y1 * f64::from(i) / 4.0).collect(),
    };
    for y in y_ticks {
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{left} {0:.1}H{right}\"/><text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            py(y),
            left - 4.0,
            py(y) + 3.5,
            short(y)
        );
    }
    for (x, label) in x_ticks.iter().filter(|t| t.0 >= x0 && t.0 <= x1) {
        let anchor = match px(*x) {
            p if p > right - 12.0 => "end",
            p if p < left + 12.0 => "start",
            _ => "middle",
        };
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            px(*x),
            bottom + 13.0,
            escape(label)
        );
    }
    for line in lines {
        let mut path = String::new();
        for (x, y) in line.points.iter().filter(|p| !log || p.1 > 0.0) {
            let to = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{to}{:.1} {:.1}", px(*x), py(*y));
        }
        let _ = write!(out, "<path class=\"line {}\" d=\"{path}\"/>", line.class);
    }
    out.push_str("</svg>");
    out
}

/// Returns the ticks of an axis of seconds.
pub fn seconds(most: f64) -> Ticks {
    let step = [
        1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
    ]
    .into_iter()
    .find(|step| most / step <= 6.0)
    .unwrap_or(7200.0);
    let count = (most / step) as u32;
    (0..=count)
        .map(|i| f64::from(i) * step)
        .map(|s| (s, format!("{s:.0} s")))
        .collect()
}

/// Returns the position of a quantile on an axis where each further nine has the same width.
pub fn nines(q: f64) -> f64 {
    -(1.0 - q.min(0.99999)).log10()
}

/// A ratio: its label, value and interval.
pub struct Dot {
    /// Label in front of the ratio.
    pub label: String,
    /// The ratio.
    pub ratio: f64,
    /// Interval of the ratio.
    pub interval: Option<(f64, f64)>,
}

/// Draws ratios around 1, by their logarithms, with their intervals.
pub fn dots(title: &str, dots: &[Dot]) -> String {
    let reach = dots
        .iter()
        .flat_map(|d| {
            [
                d.ratio,
                d.interval.map_or(d.ratio, |i| i.0),
                d.interval.map_or(d.ratio, |i| i.1),
            ]
        })
        .filter(|r| *r > 0.0 && r.is_finite())
        .map(|r| r.ln().abs())
        .fold(2f64.ln(), f64::max)
        // The exact position of a ratio beyond 100 does not matter.
        .min(100f64.ln());
    let (middle, half) = (222.0, 86.0);
    let x = |r: f64| middle + (r.max(1e-9).ln() / reach).clamp(-1.0, 1.0) * half;
    let height = 22.0 * dots.len() as f64 + 20.0;
    let mut out = open(title, height);
    let _ = write!(
        out,
        "<path class=\"grid\" d=\"M{middle} 0V{0:.1}\"/><text x=\"{middle}\" y=\"{1:.1}\" text-anchor=\"middle\">1</text>",
        height - 14.0,
        height - 3.0
    );
    for (i, dot) in dots.iter().enumerate() {
        let y = 22.0 * i as f64 + 12.0;
        let _ = write!(
            out,
            "<text x=\"128\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            y + 3.5,
            escape(&dot.label)
        );
        if let Some((low, high)) = dot.interval {
            let _ = write!(
                out,
                "<path class=\"axis\" d=\"M{:.1} {y:.1}H{:.1}\"/>",
                x(low),
                x(high)
            );
        }
        let _ = write!(
            out,
            "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"/><text x=\"316\" y=\"{:.1}\">{}</text>",
            x(dot.ratio),
            y + 3.5,
            short(dot.ratio)
        );
    }
    out.push_str("</svg>");
    out
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<h4>{title}</h4><svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{title}\">"
    )
}

#[cfg(test)]
mod tests;
