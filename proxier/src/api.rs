//! Kubernetes objects as they are on the wire, and how they are read.
//!
//! The types hold only the fields a node needs; everything else is skipped while deserializing.
//! They are total: a field that is missing, `null` or of the wrong scalar type deserializes all the
//! same, so that one bad field costs no more than itself. Only a list or a mapping in the wrong
//! place makes an object unreadable. What the fields mean, and what is done about bad ones, is
//! decided when the objects are parsed into [`crate::model`]; the rules are kube-proxy's, and where
//! a bad value needs an answer, the API server's validation and defaulting give it.
//!
//! The types know nothing of files: the API server's JSON and manifests go through the same code.

mod address;
pub mod annotations;
mod endpoint_slice;
mod endpoints;
mod findings;
mod metadata;
mod node;
mod scalar;
mod service;
mod service_cidr;

pub use endpoint_slice::EndpointSlice;
pub use endpoints::Endpoints;
pub use metadata::Metadata;
pub use node::{Node, NodeLabels};
pub use service::Service;
pub use service_cidr::ServiceCidr;

pub(crate) use address::parse_address;
pub(crate) use scalar::Scalar;
pub(crate) use service::{ServiceSpec, parse_family};

use serde::{Deserialize, Deserializer};

/// Reads `null` like a missing field, as the API server does.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
