//! The rows of the view as CSV (RFC 4180).

use super::model::{Overview, Traffic};
use super::text;

/// The names of the columns of [`traffic`].
const TRAFFIC: [&str; 6] = [
    "active",
    "inactive",
    "connections",
    "connectionRate",
    "bytes",
    "byteRate",
];

/// Returns the Service ports, or the endpoints of the Service that was asked for.
pub(crate) fn csv(view: &Overview) -> String {
    let mut rows = vec![];
    if let Some(service) = &view.service {
        let mut header = vec!["namespace", "name", "port", "frontend", "clients"];
        header.extend(["endpoint", "node", "zone", "weight"]);
        header.extend(TRAFFIC);
        header.extend(["share", "fairShare", "drainSeconds", "outOfRotation"]);
        rows.push(header.into_iter().map(str::to_owned).collect());
        for frontend in &service.frontends {
            for it in &frontend.endpoints {
                let mut row = vec![
                    service.namespace.clone(),
                    service.name.clone(),
                    frontend.port.clone(),
                    frontend.frontend.clone(),
                    frontend.clients.clone(),
                    it.address.to_string(),
                    it.node.clone(),
                    it.zone.clone(),
                    number(it.weight),
                ];
                row.extend(traffic(&it.traffic));
                row.extend([
                    number(it.share),
                    number(it.fair_share),
                    number(it.drain_seconds),
                    it.out_of_rotation.clone().unwrap_or_default(),
                ]);
                rows.push(row);
            }
        }
    } else {
        let mut header = vec![
            "namespace",
            "name",
            "port",
            "frontend",
            "frontends",
            "endpoints",
            "draining",
        ];
        header.extend(TRAFFIC);
        header.push("faults");
        rows.push(header.into_iter().map(str::to_owned).collect());
        for it in &view.services.rows {
            let mut row = vec![
                it.namespace.clone(),
                it.name.clone(),
                it.port.clone(),
                it.frontend.clone(),
                it.frontends.to_string(),
                it.endpoints.to_string(),
                it.draining.to_string(),
            ];
            row.extend(traffic(&it.traffic));
            row.push(text::state(it));
            rows.push(row);
        }
    }
    let line = |row: Vec<String>| {
        row.iter()
            .map(|it| quoted(it))
            .collect::<Vec<_>>()
            .join(",")
            + "\r\n"
    };
    rows.into_iter().map(line).collect()
}

fn traffic(it: &Traffic) -> [String; 6] {
    [
        number(it.active),
        number(it.inactive),
        number(it.connections),
        number(it.connection_rate),
        number(it.bytes),
        number(it.byte_rate),
    ]
}

fn number(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Returns a field in quotes if it needs them. One that a spreadsheet would take for a formula gets a `'` before it.
fn quoted(field: &str) -> String {
    let is_formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let field = if is_formula {
        format!("'{field}")
    } else {
        field.to_owned()
    };
    match field.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_and_are_no_formulas() {
        assert_eq!(quoted("a"), "a");
        assert_eq!(quoted("a, \"b\"\n"), "\"a, \"\"b\"\"\n\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
    }
}
