//! Kubernetes Events: what this node reports to the API server.
//!
//! ```text
//! Problems, failures ─▶ Notice ─▶ EventBook: which, how often ─▶ watch: one request at a time
//! ```
//!
//! A [`Notice`] that lasts is one Event, whose count grows. Its name is a hash of its content, so that
//! the nodes of a cluster, which all see the same Problem of a Service, write one Event together: each waits for
//! a time of its own and looks for the Event first, so that one node creates it. The
//! [`EventBook`] bounds memory and the rate of requests. Nothing here is needed for serving: a request
//! that fails is dropped.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

use crate::cluster::model::ObjectName;
use crate::cluster::problem::Problem;
use net::stable_hash::fnv1a;

mod book;

pub use book::EventTimes;
pub(crate) use book::{EventBook, Task};

/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regarding {
    /// Our own Node.
    Node,
    /// A Service.
    Service(ObjectName),
    /// An EndpointSlice.
    EndpointSlice(ObjectName),
}

/// Whether an Event reports something wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is wrong (`Normal`).
    Normal,
    /// Something is wrong (`Warning`).
    Warning,
}

/// How often a notice is reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occurrence {
    /// Again and again while it is present.
    Lasting,
    /// Once; the text distinguishes it from an earlier one with the same note.
    Once(String),
}

/// Something to report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The object that it is about.
    pub regarding: Regarding,
    /// Whether something is wrong.
    pub severity: Severity,
    /// Why it is reported, as one word: `InvalidField`.
    pub reason: &'static str,
    /// The program's action, as one word: `Plan`.
    pub action: &'static str,
    /// The text, of at most [`Notice::MAX_NOTE`] bytes.
    pub note: String,
    /// How often it is reported.
    pub occurrence: Occurrence,
}

impl Notice {
    /// The API server's limit for notes, in bytes.
    pub const MAX_NOTE: usize = 1_024;

    /// The reason of the notice of a Problem.
    const INVALID_INPUT: &'static str = "InvalidInput";

    /// Returns a notice that the program starts.
    pub fn starting(at: SystemTime) -> Self {
        Self {
            severity: Severity::Normal,
            occurrence: Occurrence::Once(timestamp(at).to_string()),
            ..Self::node("Starting", "StartKubeProxy", "ipvs-proxier is starting")
        }
    }

    /// Returns a warning about our Node.
    pub fn node(reason: &'static str, action: &'static str, note: &str) -> Self {
        Self {
            regarding: Regarding::Node,
            severity: Severity::Warning,
            reason,
            action,
            note: shorten(note),
            occurrence: Occurrence::Lasting,
        }
    }

    /// Returns the notice of a Problem. Problems of other objects and of files are reported at our Node.
    pub fn problem(problem: &Problem) -> Self {
        let named = |(namespace, name)| ObjectName::new(namespace, name);
        let regarding = match problem.object.split_once(' ') {
            Some(("Service", name)) => name.split_once('/').map(named).map(Regarding::Service),
            Some(("EndpointSlice", name)) => name
                .split_once('/')
                .map(named)
                .map(Regarding::EndpointSlice),
            _ => None,
        };
        let note = match &regarding {
            // The Event names the object already.
            Some(_) => Problem {
                object: problem.field.clone(),
                field: String::new(),
                ..problem.clone()
            }
            .to_string(),
            None => problem.to_string(),
        };
        Self {
            regarding: regarding.unwrap_or(Regarding::Node),
            ..Self::node(Self::INVALID_INPUT, "Plan", &note)
        }
    }

    /// Returns the namespace of the object; `None` for our Node.
    fn namespace(&self) -> Option<&str> {
        match &self.regarding {
            Regarding::Node => None,
            Regarding::Service(name) | Regarding::EndpointSlice(name) => Some(name.namespace()),
        }
    }

    /// Returns whether all nodes of the cluster have the same notice: that of a Problem of an object that all see.
    pub(crate) fn is_common(&self) -> bool {
        self.regarding != Regarding::Node && self.reason == Self::INVALID_INPUT
    }

    /// Returns the text that distinguishes the notice from all others.
    fn identity(&self) -> String {
        let occasion = match &self.occurrence {
            Occurrence::Lasting => "",
            Occurrence::Once(occasion) => occasion,
        };
        format!("{}\0{}\0{occasion}", self.reason, self.note)
    }

    /// Returns the namespace and the name of the Event, which are the same in every process.
    ///
    /// For our Node the name contains the node's name; for other objects it does not, so that the nodes of
    /// a cluster write one Event together.
    pub fn event_name(&self, node_name: &str) -> (String, String) {
        let hash = fnv1a(self.identity().bytes());
        let (namespace, object) = match &self.regarding {
            // Events of cluster-scoped objects are in this namespace.
            Regarding::Node => ("default", node_name),
            Regarding::Service(name) | Regarding::EndpointSlice(name) => {
                (name.namespace(), name.name())
            }
        };
        // A name has at most 253 characters.
        let object: String = object.chars().take(230).collect();
        (namespace.to_owned(), format!("{object}.{hash:016x}"))
    }

    /// Returns the Event.
    ///
    /// `uid` is the object's; without it, `kubectl describe` does not show the Event.
    pub fn event(&self, node_name: &str, uid: Option<&str>, now: SystemTime) -> Event {
        let (namespace, name) = self.event_name(node_name);
        let (api_version, kind, object, uid) = match &self.regarding {
            // kubelet uses the name as the UID of its own Node too.
            Regarding::Node => ("v1", "Node", node_name, Some(node_name)),
            Regarding::Service(name) => ("v1", "Service", name.name(), uid),
            Regarding::EndpointSlice(name) => {
                ("discovery.k8s.io/v1", "EndpointSlice", name.name(), uid)
            }
        };
        let severity = match self.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        Event {
            metadata: ObjectMeta {
                namespace: Some(namespace),
                name: Some(name),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(timestamp(now))),
            reporting_controller: Some("ipvs-proxier.io/ipvs-proxier".into()),
            // The server permits 128 characters.
            reporting_instance: Some(node_name.chars().take(128).collect()),
            regarding: Some(ObjectReference {
                api_version: Some(api_version.into()),
                kind: Some(kind.into()),
                namespace: self.namespace().map(str::to_owned),
                name: Some(object.to_owned()),
                uid: uid.map(str::to_owned),
                ..ObjectReference::default()
            }),
            type_: Some(severity.into()),
            reason: Some(self.reason.into()),
            action: Some(self.action.into()),
            note: Some(self.note.clone()),
            ..Event::default()
        }
    }
}

/// Returns the notices of these Problems: of each namespace, only as many as an [`EventBook`] remembers.
///
/// # Cost
/// Linear in the Problems, but only a bounded number of notices is written per namespace.
pub(crate) fn notices(problems: &[Problem]) -> impl Iterator<Item = Notice> {
    let mut shares = BTreeMap::<&str, usize>::new();
    let selected = problems.iter().filter(move |problem| {
        // Problems of all other objects are reported at our Node.
        let namespace = problem
            .object
            .split_once('/')
            .map_or("", |(first, _)| first);
        let share = shares.entry(namespace).or_default();
        *share += 1;
        *share <= EventBook::MAX_OF_NAMESPACE
    });
    selected.map(Notice::problem)
}

/// Returns the change of an Event that was seen `count` times.
pub(crate) fn series(count: u32, now: SystemTime) -> Event {
    let series = EventSeries {
        count: i32::try_from(count).unwrap_or(i32::MAX),
        last_observed_time: MicroTime(timestamp(now)),
    };
    Event {
        series: Some(series),
        ..Event::default()
    }
}

fn timestamp(at: SystemTime) -> Timestamp {
    Timestamp::try_from(at).unwrap_or_default()
}

/// Cuts a note to the server's limit.
fn shorten(note: &str) -> String {
    const MARK: &str = "...";
    if note.len() <= Notice::MAX_NOTE {
        return note.to_owned();
    }
    let mut end = Notice::MAX_NOTE - MARK.len();
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &note[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(object: &str) -> Notice {
        let message = "is not an IP address; ignored";
        Notice::problem(&Problem::new(
            object,
            "spec.externalIPs[0]",
            "bogus",
            message,
        ))
    }

    #[test]
    fn a_problem_of_a_service_is_the_same_event_on_every_node() {
        let notice = problem("Service default/web");
        assert_eq!(
            notice.note,
            "spec.externalIPs[0]: \"bogus\": is not an IP address; ignored"
        );
        assert_eq!(notice.event_name("a"), notice.event_name("b"));
        let event = notice.event("a", Some("1-2"), SystemTime::UNIX_EPOCH);
        let event = serde_json::to_value(event).unwrap();
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["regarding"]["uid"], "1-2");
        assert_eq!(event["eventTime"], "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn problems_of_other_objects_are_reported_at_the_node() {
        for object in ["This node", "Configuration", "Node b", "services.yaml"] {
            let notice = problem(object);
            assert_eq!(notice.regarding, Regarding::Node);
            assert!(notice.note.starts_with(object), "{}", notice.note);
            assert_ne!(notice.event_name("a"), notice.event_name("b"));
        }
    }

    #[test]
    fn each_namespace_has_a_share_of_the_notices() {
        let problem = |object: String| Problem::new(object, "spec", "x", "is wrong");
        let of_tenant = (0..1_000).map(|n| problem(format!("Service a/web-{n}")));
        let others = ["Service b/web", "EndpointSlice c/web-1", "Configuration"];
        let problems: Vec<Problem> = of_tenant
            .chain(others.map(|object| problem(object.to_owned())))
            .collect();
        let selected: Vec<Notice> = notices(&problems).collect();
        assert_eq!(selected.len(), EventBook::MAX_OF_NAMESPACE + others.len());
        assert!(
            others
                .map(|object| Notice::problem(&problem(object.to_owned())))
                .iter()
                .all(|notice| selected.contains(notice))
        );
    }

    #[test]
    fn names_and_notes_respect_the_servers_limits() {
        let notice = Notice::node("A", "B", &"é".repeat(2_000));
        assert!(notice.note.len() <= Notice::MAX_NOTE);
        let (_, name) = notice.event_name(&"n".repeat(253));
        assert!(name.len() <= 253, "{name}");
        let event = notice.event(&"n".repeat(253), None, SystemTime::UNIX_EPOCH);
        assert_eq!(event.reporting_instance.unwrap().len(), 128);
    }

    #[test]
    fn each_start_is_an_event_of_its_own() {
        let at = |secs| {
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs);
            Notice::starting(at).event_name("a")
        };
        assert_ne!(at(1), at(2));
    }
}
