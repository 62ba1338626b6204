//! What is asked of the server.

use std::fmt::Write;
use std::time::Duration;

use super::resource::Resource;

/// How many objects a page holds, unless the server answers from its cache, where it knows no pages.
const PAGE: &str = "500";

/// From when on a list is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// Any state that the server has at hand: cheapest for the server, enough for a start.
    Any,
    /// One not older than this resource version, so that time never goes backwards.
    Seen(String),
    /// The newest.
    Newest,
}

/// A request's path and query.
#[derive(Debug)]
pub(super) struct Query(String);

impl Query {
    /// All objects of a kind that the selectors let through; `fields` beyond the kind's own.
    pub(super) fn new<R: Resource>(fields: Option<&str>) -> Self {
        let mut query = Self(format!("{}?", R::PATH));
        if let Some(labels) = R::LABELS {
            query.add("labelSelector", labels);
        }
        if let Some(fields) = R::FIELDS.or(fields) {
            query.add("fieldSelector", fields);
        }
        query
    }

    /// A list: its first page.
    pub(super) fn list(mut self, since: &Since) -> Self {
        self.add("limit", PAGE);
        match since {
            Since::Any => self.add("resourceVersion", "0"),
            Since::Seen(version) => {
                self.add("resourceVersion", version);
                self.add("resourceVersionMatch", "NotOlderThan");
            }
            Since::Newest => {}
        }
        self
    }

    /// A list's next page.
    pub(super) fn page(mut self, r#continue: &str) -> Self {
        self.add("limit", PAGE);
        self.add("continue", r#continue);
        self
    }

    /// Changes after `version`, for about `time`.
    pub(super) fn watch(mut self, version: &str, time: Duration) -> Self {
        self.add("watch", "1");
        self.add("allowWatchBookmarks", "true");
        self.add("resourceVersion", version);
        self.add("timeoutSeconds", &time.as_secs().max(1).to_string());
        self
    }

    /// All objects as additions, a bookmark, then changes (KEP-3157).
    pub(super) fn stream(self, since: &Since, time: Duration) -> Self {
        let version = match since {
            Since::Seen(version) => version,
            Since::Any | Since::Newest => "",
        };
        let mut query = self.watch(version, time);
        query.add("sendInitialEvents", "true");
        query.add("resourceVersionMatch", "NotOlderThan");
        query
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    fn add(&mut self, name: &str, value: &str) {
        if !self.0.ends_with('?') {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    self.0.push(char::from(byte));
                }
                // Writing to a string cannot fail.
                _ => drop(write!(self.0, "%{byte:02X}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::resource::{OwnNode, Services};
    use super::*;

    #[test]
    fn selectors_and_versions_are_spelled_for_a_url() {
        let query = Query::new::<Services>(None).list(&Since::Any);
        assert_eq!(
            query.as_str(),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone&limit=500&resourceVersion=0"
        );
        let query = Query::new::<OwnNode>(Some("metadata.name=n")).page("a+/=");
        assert_eq!(
            query.as_str(),
            "/api/v1/nodes?fieldSelector=metadata.name%3Dn&limit=500&continue=a%2B%2F%3D"
        );
        let minute = Duration::from_secs(60);
        let query = Query::new::<OwnNode>(None).stream(&Since::Seen("7".into()), minute);
        assert_eq!(
            query.as_str(),
            "/api/v1/nodes?watch=1&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=60\
             &sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        );
    }
}
