//! Kubernetes objects on the wire, and their parsing into the [model](crate::cluster::model).
//!
//! The types hold only the fields that a node needs; serde skips all others. A field that is
//! missing, `null` or of the wrong scalar type still deserializes, so a bad field affects only
//! itself. Only a list or mapping in the wrong place makes an object unreadable. Parsing into the
//! model decides what the fields mean and replaces bad values. The rules are those of kube-proxy and,
//! for bad values, of the API server's validation and defaulting.
//!
//! The types do not depend on files or encodings: JSON and protobuf of the API server, and manifests,
//! are parsed by the same code.

mod address;
pub(crate) mod annotations;
mod endpoint_slice;
mod endpoints;
mod metadata;
mod node;
mod parser;
pub(crate) mod protobuf;
mod scalar;
mod seen;
mod service;
mod service_cidr;
#[cfg(test)]
mod tests;

pub use annotations::ANNOTATIONS;
pub use endpoint_slice::EndpointSliceObject;
pub(crate) use endpoints::Endpoints;
pub use node::{NodeLabels, NodeObject};
pub use protobuf::{FromProtobuf, ProtobufError, from_protobuf};
pub use service::ServiceObject;
pub(crate) use service_cidr::ServiceCidrObject;

pub(crate) use address::parse_address;
pub(crate) use scalar::Scalar;
pub(crate) use service::{ServiceSpec, parse_family};

use serde::{Deserialize, Deserializer};

use crate::cluster::problem::Problem;
use crate::cluster::store::{Interner, Parsed};

/// An object on the wire that has a form in the model.
pub trait WireObject {
    /// Its type in the model.
    type Object;

    /// Parses the object.
    ///
    /// # Errors
    /// If the object has no valid name.
    fn parse(&self, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem>;
}

/// Deserializes an object from the JSON of an API server.
///
/// # Errors
/// If the text is not JSON, or a list or mapping is in the wrong place.
pub fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> serde_json::Result<T> {
    match std::str::from_utf8(json) {
        // One check of the whole text costs less than one of every string.
        Ok(text) => serde_json::from_str(text),
        // A field that no node needs may have other bytes.
        Err(_) => serde_json::from_slice(json),
    }
}

/// Deserializes `null` like a missing field, as the API server does.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
