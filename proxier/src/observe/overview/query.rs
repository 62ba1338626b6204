//! What a client wants to see, as the query of an address.

use std::fmt;

use form_urlencoded::Serializer;

use crate::cluster::model::ObjectName;

/// The most rows of an answer.
const MAX_ROWS: usize = 200;

/// The rows of an answer, unless the client asks for another number.
const ROWS: usize = 50;

/// The seconds between two requests of a page, unless the client asks for another number.
const REFRESH: u32 = 5;

/// The longest filter, in characters.
const MAX_FILTER: usize = 100;

/// What a client wants to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// The order of Services.
    pub(crate) sort: Sort,
    /// Only rows that contain this text, in lower case.
    pub(crate) filter: String,
    /// Only rows with a fault.
    pub(crate) only_wrong: bool,
    /// The number of rows before the first one.
    pub(crate) first: usize,
    /// The most rows.
    pub(crate) rows: usize,
    /// The Service to expand.
    pub(crate) service: Option<ObjectName>,
    /// The seconds until a page requests itself again; 0 for never.
    pub(crate) refresh: u32,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            sort: Sort::default(),
            filter: String::new(),
            only_wrong: false,
            first: 0,
            rows: ROWS,
            service: None,
            refresh: REFRESH,
        }
    }
}

/// The order of Services; the largest first, except for names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// Open connections.
    #[default]
    Connections,
    /// New connections per second.
    New,
    /// Bytes per second in both directions.
    Bytes,
    /// Namespace, name and port.
    Name,
}

impl Sort {
    /// All orders.
    pub(crate) const ALL: [Self; 4] = [Self::Connections, Self::New, Self::Bytes, Self::Name];

    /// Returns the order in the query of an address.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::New => "new",
            Self::Bytes => "bytes",
            Self::Name => "name",
        }
    }
}

impl Query {
    /// Parses the query of an address. What it does not know, and values that are invalid, have no effect.
    pub(crate) fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "sort" => {
                    let known = Sort::ALL.into_iter().find(|sort| sort.word() == value);
                    parsed.sort = known.unwrap_or_default();
                }
                "filter" => {
                    let words = value.trim().to_lowercase();
                    parsed.filter = words.chars().take(MAX_FILTER).collect();
                }
                "wrong" => parsed.only_wrong = value == "1",
                "first" => parsed.first = value.parse().unwrap_or(0),
                "rows" => parsed.rows = value.parse().unwrap_or(ROWS).clamp(1, MAX_ROWS),
                "service" => {
                    let parts = value.split_once('/');
                    parsed.service =
                        parts.map(|(namespace, name)| ObjectName::new(namespace, name));
                }
                "refresh" => parsed.refresh = value.parse().unwrap_or(REFRESH).min(3_600),
                _ => {}
            }
        }
        parsed
    }

    /// Returns the query with another Service.
    pub(crate) fn of_service(&self, service: Option<ObjectName>) -> Self {
        Self {
            service,
            ..self.clone()
        }
    }
}

/// The query of an address, without what is default.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut pairs = Serializer::new(String::new());
        if self.sort != default.sort {
            pairs.append_pair("sort", self.sort.word());
        }
        if !self.filter.is_empty() {
            pairs.append_pair("filter", &self.filter);
        }
        if self.only_wrong {
            pairs.append_pair("wrong", "1");
        }
        for (key, value, default) in [
            ("first", self.first, default.first),
            ("rows", self.rows, default.rows),
        ] {
            if value != default {
                pairs.append_pair(key, &value.to_string());
            }
        }
        if let Some(service) = &self.service {
            pairs.append_pair("service", &service.to_string());
        }
        if self.refresh != default.refresh {
            pairs.append_pair("refresh", &self.refresh.to_string());
        }
        f.write_str(&pairs.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_parsed_as_it_was_written() {
        let query = Query {
            sort: Sort::Bytes,
            filter: "a&b <c>".to_owned(),
            only_wrong: true,
            first: 100,
            rows: 20,
            service: Some(ObjectName::new("ns", "web")),
            refresh: 0,
        };
        assert_eq!(Query::parse(&query.to_string()), query);
        assert_eq!(Query::default().to_string(), "");
        assert_eq!(Query::parse(""), Query::default());
    }

    #[test]
    fn invalid_values_have_no_effect_and_large_ones_are_bounded() {
        let query = Query::parse("sort=x&first=-1&rows=9999&service=web&refresh=x&other=1");
        let expected = Query {
            rows: MAX_ROWS,
            ..Query::default()
        };
        assert_eq!(query, expected);
        let long = format!("filter={}", "a".repeat(1_000));
        assert_eq!(Query::parse(&long).filter.len(), MAX_FILTER);
    }
}
