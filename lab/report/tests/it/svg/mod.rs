//! A parser for the little of XML that pictures use: it says what is wrong, and where.

/// Every picture in a page.
pub(crate) fn pictures(page: &str) -> Vec<&str> {
    let mut pictures = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find("<svg") {
        let end = rest[start..].find("</svg>").map_or(rest.len(), |end| start + end + 6);
        pictures.push(&rest[start..end]);
        rest = &rest[end..];
    }
    pictures
}

/// Checks that tags are closed in order, attributes are quoted and unique, text is escaped, and
/// every number is one.
pub(crate) fn check(picture: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = picture;
    while let Some(start) = rest.find('<') {
        text(&rest[..start])?;
        let end = rest[start..].find('>').ok_or("a tag without an end")? + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            match open.pop() {
                Some(expected) if expected == name => {}
                other => return Err(format!("</{name}> closes {other:?}")),
            }
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        check_attributes(name, attributes)?;
        if !is_empty {
            open.push(name);
        }
    }
    text(rest)?;
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} left open")) }
}

fn check_attributes(tag: &str, attributes: &str) -> Result<(), String> {
    let mut seen: Vec<&str> = Vec::new();
    let mut rest = attributes.trim();
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").ok_or(format!("no value in <{tag} {rest}>"))?;
        let (value, after) = value.split_once('"').ok_or(format!("no quote after {name}"))?;
        if seen.contains(&name) {
            return Err(format!("{name} twice in <{tag}>"));
        }
        seen.push(name);
        text(value)?;
        let is_number = matches!(
            name,
            "x" | "y" | "x1" | "x2" | "y1" | "y2" | "cx" | "cy" | "r" | "width" | "height"
        );
        if is_number {
            let number: f64 = value.parse().map_err(|_| format!("{name}={value}"))?;
            let is_size = matches!(name, "r" | "width" | "height");
            if !number.is_finite() || (is_size && number < 0.0) {
                return Err(format!("{name}={value} in <{tag}>"));
            }
        }
        if name == "d" && (value.contains("NaN") || value.contains("inf")) {
            return Err(format!("no path: {value}"));
        }
        rest = after.trim_start();
    }
    Ok(())
}

fn text(text: &str) -> Result<(), String> {
    let entities = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    for (index, _) in text.match_indices('&') {
        if !entities.iter().any(|entity| text[index..].starts_with(entity)) {
            return Err(format!("a bare & in {text:?}"));
        }
    }
    Ok(())
}
