//! The words of a command.

use serde_json::{Map, Value, json};

/// The words of a command: bare words, and `key=value` pairs in order.
pub(super) struct Words<'a> {
    pub(super) bare: Vec<&'a str>,
    pub(super) named: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let (mut bare, mut named) = (Vec::new(), Vec::new());
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(pair) if !word.contains('(') => named.push(pair),
                _ => bare.push(word),
            }
        }
        Self { bare, named }
    }

    pub(super) fn get(&self, wanted: &str) -> Option<&'a str> {
        let mut named = self.named.iter();
        named
            .find(|(key, _)| *key == wanted)
            .map(|&(_, value)| value)
    }

    pub(super) fn list(&self, wanted: &str) -> Vec<&'a str> {
        self.get(wanted)
            .map_or_else(Vec::new, |list| list.split(',').collect())
    }

    pub(super) fn all(&self, wanted: &'static str) -> impl Iterator<Item = &'a str> {
        let named = self.named.iter();
        named
            .filter(move |(key, _)| *key == wanted)
            .map(|&(_, value)| value)
    }

    /// Returns the pairs whose key begins with `prefix`, without the prefix.
    pub(super) fn with_prefix(&self, prefix: &str) -> Map<String, Value> {
        let named = self.named.iter();
        named
            .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), json!(value))))
            .collect()
    }
}
