//! The objects, their history, and resource versions.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use serde_json::{Value, json};

/// The kinds that are served: name, name in the plural, API version.
const KINDS: [(&str, &str, &str); 4] = [
    ("Service", "services", "v1"),
    ("Node", "nodes", "v1"),
    ("EndpointSlice", "endpointslices", "discovery.k8s.io/v1"),
    ("ServiceCIDR", "servicecidrs", "networking.k8s.io/v1"),
];

/// Where an object is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The kind's name in the plural: `services`.
    pub plural: String,
    /// Empty for objects of the whole cluster.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Key {
    /// The key of `kind` (`Service`), or `None` when it is not served here.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Option<Self> {
        let (_, plural, _) = KINDS.iter().find(|(known, _, _)| *known == kind)?;
        Some(Self {
            plural: (*plural).to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The key that `object` names itself by.
    pub fn of(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        Self::new(
            object["kind"].as_str()?,
            metadata["namespace"].as_str().unwrap_or(""),
            metadata["name"].as_str()?,
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.plural, self.namespace, self.name)
    }
}

/// A kind that is served under a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) api_version: &'static str,
}

impl Kind {
    /// The kind that `path` lists.
    pub(crate) fn at(path: &str) -> Option<Self> {
        KINDS.iter().find_map(|&(name, plural, api_version)| {
            let root = if api_version.contains('/') {
                "apis"
            } else {
                "api"
            };
            (path == format!("/{root}/{api_version}/{plural}")).then_some(Self {
                name,
                plural,
                api_version,
            })
        })
    }
}

/// An object in one version.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    /// The same as text: spelled once, sent often.
    pub(crate) json: String,
}

/// What happened to an object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) plural: String,
    pub(crate) old: Option<Arc<Object>>,
    pub(crate) new: Option<Arc<Object>>,
}

/// All objects and what happened to them.
#[derive(Debug)]
pub(crate) struct Objects {
    revision: u64,
    /// No watch can start before this revision.
    oldest: u64,
    /// The last change that was forgotten; 0 before the first.
    forgotten: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    history: BTreeMap<u64, Change>,
    /// The rest of lists whose first pages were read, by their `continue` token.
    rests: BTreeMap<String, Rest>,
}

/// The part of a list that was not sent yet.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Object>>,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            // As on a fresh cluster: not 0, which means something else.
            revision: 1,
            oldest: 1,
            forgotten: 0,
            objects: BTreeMap::new(),
            history: BTreeMap::new(),
            rests: BTreeMap::new(),
        }
    }
}

impl Objects {
    /// How many changes are remembered.
    const HISTORY: usize = 100_000;

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether a watch can start after `revision`.
    pub(crate) fn remembers(&self, revision: u64) -> bool {
        revision >= self.oldest
    }

    /// Whether a running watch that told all up to `revision` missed something.
    pub(crate) fn is_behind(&self, revision: u64) -> bool {
        revision < self.forgotten
    }

    pub(crate) fn put(&mut self, key: Key, value: Value) -> u64 {
        let object = self.version(value);
        let old = self.objects.insert(key.clone(), object.clone());
        self.remember(key.plural, old, Some(object))
    }

    pub(crate) fn delete(&mut self, key: &Key) -> u64 {
        match self.objects.remove(key) {
            None => self.revision,
            Some(old) => {
                self.revision += 1;
                self.remember(key.plural.clone(), Some(old), None)
            }
        }
    }

    /// Gives the object the next resource version.
    fn version(&mut self, mut value: Value) -> Arc<Object> {
        self.revision += 1;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".into(), json!(self.revision.to_string()));
        }
        let json = value.to_string();
        Arc::new(Object { value, json })
    }

    fn remember(
        &mut self,
        plural: String,
        old: Option<Arc<Object>>,
        new: Option<Arc<Object>>,
    ) -> u64 {
        let revision = self.revision;
        let change = Change {
            revision,
            plural,
            old,
            new,
        };
        self.history.insert(revision, change);
        while self.history.len() > Self::HISTORY {
            if let Some((revision, _)) = self.history.pop_first() {
                self.oldest = revision;
                self.forgotten = revision;
            }
        }
        revision
    }

    pub(crate) fn compact(&mut self) {
        // A version of its own, as real compaction leaves the newest one usable.
        self.revision += 1;
        self.oldest = self.revision;
        if let Some((last, _)) = self.history.pop_last() {
            self.forgotten = last;
        }
        self.history.clear();
        self.rests.clear();
    }

    pub(crate) fn restore(&mut self, revision: u64) {
        self.compact();
        self.revision = revision;
        self.oldest = revision;
        self.forgotten = 0;
    }

    /// The objects of a kind, in order of their keys.
    pub(crate) fn of_kind(&self, plural: &str) -> impl Iterator<Item = &Arc<Object>> {
        let from = Key {
            plural: plural.to_owned(),
            namespace: String::new(),
            name: String::new(),
        };
        let plural = from.plural.clone();
        self.objects
            .range((Bound::Included(from), Bound::Unbounded))
            .take_while(move |(key, _)| key.plural == plural)
            .map(|(_, object)| object)
    }

    /// The first change of a kind after `revision`.
    pub(crate) fn next_change(&self, plural: &str, revision: u64) -> Option<Change> {
        let after = (Bound::Excluded(revision), Bound::Unbounded);
        let mut later = self.history.range(after).map(|(_, change)| change);
        later.find(|change| change.plural == plural).cloned()
    }

    /// Keeps the rest of a list for a later page.
    pub(crate) fn keep(&mut self, rest: Rest) -> String {
        let token = format!("{}+{}/=", rest.revision, self.rests.len());
        self.rests.insert(token.clone(), rest);
        token
    }

    /// The rest of a list, if its state was not compacted.
    pub(crate) fn rest(&self, token: &str) -> Option<Rest> {
        self.rests.get(token).cloned()
    }
}
