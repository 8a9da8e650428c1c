//! Prints an application's routes as a table.

use crate::app::built::{BuiltApp, RouteInfo};
use crate::app::pattern::display_pattern;
use std::fmt;

/// The routes of an application as a table, in the order in which they were added: the method, the
/// pattern with its conditions, the name, and the source line. See
/// [`App::routes`](crate::App::routes).
///
/// The table is meant for humans, and its format may change. Programs should use
/// [`BuiltApp::routes`] or the admin listener's `/routes`.
#[derive(Clone, Debug)]
pub struct RouteList {
    rows: Vec<[String; 4]>,
}

impl RouteList {
    pub(crate) fn new(application: &BuiltApp) -> Self {
        Self { rows: application.routes().map(|route| table_row(&route)).collect() }
    }
}

fn table_row(route: &RouteInfo<'_>) -> [String; 4] {
    let mut pattern = display_pattern(route.pattern).into_owned();
    if !route.conditions.is_empty() {
        pattern.push_str(&format!(" where {}", route.conditions));
    }
    // A dash marks an empty column, so that `cut` and `awk` see the same number of columns.
    let name = route.name().unwrap_or("-").to_owned();
    [
        route.methods.to_owned(),
        pattern,
        name,
        format!("{}:{}", route.location.file(), route.location.line()),
    ]
}

impl fmt::Display for RouteList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let (method_width, pattern_width, name_width) = (width(0), width(1), width(2));
        for [method, pattern, name, location] in &self.rows {
            writeln!(
                f,
                "{method:method_width$}  {pattern:pattern_width$}  {name:name_width$}  {location}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{App, HandlerExt, guard};

    #[test]
    fn lists_routes_in_columns_with_their_source_lines() {
        let users = App::new().get("/users/{id:u32}", (|| "one").named("user"));
        let app = App::new()
            .get("/", || "start")
            .merge(users)
            .any("/{*rest}", (|| "else").guard(guard::host("a.example")));
        let text = app.routes().expect("a valid application").to_string();
        let columns = |line: &str| {
            let line: Vec<_> =
                line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
            line.join("|")
        };
        let lines: Vec<_> = text.lines().map(columns).collect();
        let expected = [
            "GET|/|-|",
            "GET|/users/{id} where id is u32|user|",
            "any method|/{*rest} where the host is a.example|-|",
        ];
        assert_eq!(lines.len(), expected.len(), "{text}");
        for (line, expected) in lines.iter().zip(expected) {
            let location =
                line.strip_prefix(expected).unwrap_or_else(|| panic!("{expected}\n{text}"));
            assert!(location.contains("route_list.rs:"), "{text}");
        }
        let location_columns: Vec<_> =
            text.lines().map(|line| line.find("crates/").or(line.find("src/"))).collect();
        assert!(
            location_columns[0].is_some()
                && location_columns.iter().all(|column| *column == location_columns[0]),
            "{text}"
        );
        assert_eq!(App::new().routes().expect("a valid application").to_string(), "");
        assert!(App::new().get("no", || "").routes().is_err());
    }
}
