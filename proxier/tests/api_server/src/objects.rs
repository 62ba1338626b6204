//! Objects, their history, and resource versions.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use k8s_openapi::Resource;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use serde_json::{Value, json};

use crate::messages::{Encode, encode_json, encode_partial};
use crate::selector::Selectable;

/// The served kinds.
const KINDS: [Kind; 4] = [
    Kind::of::<Service>(),
    Kind::of::<Node>(),
    Kind::of::<EndpointSlice>(),
    Kind::of::<ServiceCIDR>(),
];

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The kind's plural, such as `services`.
    pub plural: String,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Key {
    /// Returns the key of `kind` (`Service`), or `None` if it is not served.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Option<Self> {
        let kind = KINDS.iter().find(|known| known.name == kind)?;
        Some(Self {
            plural: kind.plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Returns the key of `object`, from its kind and metadata.
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

/// Returns an object in JSON as a message.
type Encoder = fn(&Value) -> Vec<u8>;

/// A served kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) api_version: &'static str,
    encode: Encoder,
}

impl Kind {
    const fn of<T: Encode + Resource>() -> Self {
        Self {
            name: T::KIND,
            plural: T::URL_PATH_SEGMENT,
            api_version: T::API_VERSION,
            encode: encode_json::<T>,
        }
    }

    /// Returns the kind whose collection is at `path`.
    pub(crate) fn at(path: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| {
            let root = if kind.api_version.contains('/') {
                "apis"
            } else {
                "api"
            };
            path == format!("/{root}/{}/{}", kind.api_version, kind.plural)
        })
    }
}

/// A version of an object.
///
/// It is kept as text, which takes a tenth of the memory of a [`Value`]. Text and message are encoded
/// once for all lists and watches.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) json: Box<str>,
    /// The message, without magic number and envelope.
    pub(crate) protobuf: Box<[u8]>,
    pub(crate) selectable: Selectable,
    encode: Encoder,
}

impl Object {
    fn new(value: &Value, encode: Encoder) -> Self {
        Self {
            json: value.to_string().into(),
            protobuf: encode(value).into(),
            selectable: Selectable::of(value),
            encode,
        }
    }

    /// Returns an object that has only metadata.
    pub(crate) fn of_metadata(api_version: &str, kind: &str, metadata: &Value) -> Self {
        let value = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        Self::new(&value, encode_partial)
    }

    /// Returns the object's value, parsed again from its text.
    fn value(&self) -> Value {
        serde_json::from_str(&self.json).expect("it was serialized from a value")
    }

    /// Returns the object as of another resource version.
    pub(crate) fn at(&self, revision: u64) -> Self {
        let mut value = self.value();
        set_version(&mut value, revision);
        Self::new(&value, self.encode)
    }

    /// Returns the object reduced to its metadata.
    pub(crate) fn partial(&self) -> Self {
        let metadata = &self.value()["metadata"];
        Self::of_metadata("meta.k8s.io/v1", "PartialObjectMetadata", metadata)
    }
}

fn set_version(object: &mut Value, revision: u64) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        metadata.insert("resourceVersion".into(), json!(revision.to_string()));
    }
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) plural: String,
    pub(crate) old: Option<Arc<Object>>,
    pub(crate) new: Option<Arc<Object>>,
}

/// All objects and their history.
#[derive(Debug)]
pub(crate) struct Objects {
    revision: u64,
    /// The oldest revision from which a watch can start.
    oldest: u64,
    /// The revision of the last dropped change; 0 if none was dropped.
    forgotten: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    history: BTreeMap<u64, Change>,
    /// The number of changes that are kept.
    capacity: usize,
    /// The remaining objects of paged lists, by `continue` token.
    rests: BTreeMap<String, Rest>,
}

/// The remaining objects of a paged list.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Object>>,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            // Starts above 0, because version 0 in a request means any version.
            revision: 1,
            oldest: 1,
            forgotten: 0,
            objects: BTreeMap::new(),
            history: BTreeMap::new(),
            capacity: 100_000,
            rests: BTreeMap::new(),
        }
    }
}

impl Objects {
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns whether a watch can start after `revision`.
    pub(crate) fn remembers(&self, revision: u64) -> bool {
        revision >= self.oldest
    }

    /// Returns whether a running watch that sent all changes up to `revision` missed one.
    pub(crate) fn is_behind(&self, revision: u64) -> bool {
        revision < self.forgotten
    }

    pub(crate) fn put(&mut self, key: Key, value: Value) -> u64 {
        let kind = KINDS.iter().find(|kind| kind.plural == key.plural);
        let encode = kind.map_or(encode_partial as Encoder, |kind| kind.encode);
        let object = self.version(value, encode);
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
    fn version(&mut self, mut value: Value, encode: Encoder) -> Arc<Object> {
        self.revision += 1;
        set_version(&mut value, self.revision);
        Arc::new(Object::new(&value, encode))
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
        self.forget();
        revision
    }

    /// Keeps at most this number of changes.
    pub(crate) fn limit_history(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.forget();
    }

    /// Drops the oldest changes above the capacity.
    fn forget(&mut self) {
        while self.history.len() > self.capacity {
            if let Some((revision, _)) = self.history.pop_first() {
                self.oldest = revision;
                self.forgotten = revision;
            }
        }
    }

    pub(crate) fn compact(&mut self) {
        // etcd keeps the newest revision at a compaction. A new revision without a change makes all
        // versions that clients know expire.
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

    /// Returns the objects of a kind, in order of their keys.
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

    /// Returns the first changes of a kind after `revision`.
    pub(crate) fn next_changes(&self, plural: &str, revision: u64) -> Vec<Change> {
        /// So few that a watch holds the lock only for microseconds.
        const MOST: usize = 64;
        let after = (Bound::Excluded(revision), Bound::Unbounded);
        let later = self.history.range(after).map(|(_, change)| change);
        let of_kind = later.filter(|change| change.plural == plural);
        of_kind.take(MOST).cloned().collect()
    }

    /// Stores the rest of a list for a later page. Returns the `continue` token.
    pub(crate) fn keep(&mut self, rest: Rest) -> String {
        let token = format!("{}+{}/=", rest.revision, self.rests.len());
        self.rests.insert(token.clone(), rest);
        token
    }

    /// Returns the rest of a list, if it was not compacted.
    pub(crate) fn rest(&self, token: &str) -> Option<Rest> {
        self.rests.get(token).cloned()
    }
}
