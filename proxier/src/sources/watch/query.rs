//! Paths and queries of requests.

use std::time::Duration;

use super::resource::Resource;

/// The page size, in objects, of lists that etcd answers. A server that answers from its cache
/// ignores it.
const PAGE: &str = "500";

/// How recent a list must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// Any state in the server's cache. The cheapest list for the server, and recent enough at a start.
    Any,
    /// A state not older than this resource version, so that no object returns to an older state.
    Seen(String),
    /// The newest state, by a consistent read.
    Newest,
}

/// A request's path and query.
#[derive(Debug)]
pub(super) struct Query(String);

impl Query {
    /// Returns a query for the objects of a kind that match its selectors and `fields`.
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

    /// Requests a list, or its first page.
    ///
    /// Before Kubernetes 1.32, the server reads a list with a limit and a resource version above 0 from etcd
    /// (`shouldDelegateList` in `cacher.go`). After a restart of the API server, all nodes list at the same
    /// moment. So a list with a resource version has no limit, as in client-go's reflector.
    pub(super) fn list(mut self, since: &Since) -> Self {
        match since {
            // A server whose cache is not filled yet reads this list from etcd, hence the limit.
            Since::Any => {
                self.add("limit", PAGE);
                self.add("resourceVersion", "0");
            }
            Since::Seen(version) => {
                self.add("resourceVersion", version);
                self.add("resourceVersionMatch", "NotOlderThan");
            }
            Since::Newest => self.add("limit", PAGE),
        }
        self
    }

    /// Requests the next page of a list.
    pub(super) fn page(mut self, r#continue: &str) -> Self {
        self.add("limit", PAGE);
        self.add("continue", r#continue);
        self
    }

    /// Requests a watch of the changes after `version` that lasts `time`.
    pub(super) fn watch(mut self, version: &str, time: Duration) -> Self {
        self.add("watch", "1");
        self.add("allowWatchBookmarks", "true");
        self.add("resourceVersion", version);
        self.add("timeoutSeconds", &time.as_secs().max(1).to_string());
        self
    }

    /// Requests a streaming list (KEP-3157): all objects as `ADDED` events, a bookmark, then changes.
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
        let start = self.0.find('?').map_or(0, |mark| mark + 1);
        form_urlencoded::Serializer::for_suffix(&mut self.0, start).append_pair(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::resource::{OwnNode, Services};
    use super::*;

    #[test]
    fn selectors_and_versions_are_percent_encoded() {
        let query = Query::new::<Services>(None).list(&Since::Any);
        assert_eq!(
            query.as_str(),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone&limit=500&resourceVersion=0"
        );
        let query = Query::new::<OwnNode>(None).list(&Since::Seen("7".into()));
        assert_eq!(
            query.as_str(),
            "/api/v1/nodes?resourceVersion=7&resourceVersionMatch=NotOlderThan"
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
