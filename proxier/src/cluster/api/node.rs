//! Nodes on the wire.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::address::why_unusable;
use super::metadata::Metadata;
use super::parser::Parser;
use super::protobuf::{Fields, FromProtobuf};
use super::scalar::Scalar;
use super::{WireObject, or_default};
use crate::cluster::model::{self, Cidr, ObjectName};
use crate::cluster::problem::Problem;
use crate::cluster::store::{Interner, Parsed};

/// The taint of a Node that the cluster autoscaler is about to delete; its value and effect do not
/// matter (KEP-3836).
const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// `v1` `Node`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub struct NodeObject<'a> {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata<'a>,
    #[serde(deserialize_with = "or_default")]
    spec: NodeSpec<'a>,
    #[serde(deserialize_with = "or_default")]
    status: NodeStatus<'a>,
}

impl<'a> FromProtobuf<'a> for NodeObject<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.merge(&mut it.metadata)),
        (2, |it, field| field.merge(&mut it.spec)),
        (3, |it, field| field.merge(&mut it.status)),
    ];
}

/// `v1` `Node` reduced to its labels, for nodes other than ours. Also deserializes from a
/// `meta.k8s.io/v1` `PartialObjectMetadata`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub struct NodeLabels<'a> {
    #[serde(deserialize_with = "or_default")]
    metadata: Metadata<'a>,
}

impl<'a> FromProtobuf<'a> for NodeLabels<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.merge(&mut it.metadata))];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct NodeSpec<'a> {
    #[serde(rename = "podCIDR")]
    pod_cidr: Scalar<'a>,
    #[serde(rename = "podCIDRs", deserialize_with = "or_default")]
    pod_cidrs: Vec<Scalar<'a>>,
    #[serde(deserialize_with = "or_default")]
    taints: Vec<Taint<'a>>,
}

impl<'a> FromProtobuf<'a> for NodeSpec<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.text(&mut it.pod_cidr)),
        (5, |it, field| field.push(&mut it.taints)),
        (7, |it, field| field.push_text(&mut it.pod_cidrs)),
    ];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct Taint<'a> {
    key: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for Taint<'a> {
    const FIELDS: Fields<'a, Self> = &[(1, |it, field| field.text(&mut it.key))];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct NodeStatus<'a> {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<NodeAddress<'a>>,
}

impl<'a> FromProtobuf<'a> for NodeStatus<'a> {
    const FIELDS: Fields<'a, Self> = &[(5, |it, field| field.push(&mut it.addresses))];
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct NodeAddress<'a> {
    r#type: Scalar<'a>,
    address: Scalar<'a>,
}

impl<'a> FromProtobuf<'a> for NodeAddress<'a> {
    const FIELDS: Fields<'a, Self> = &[
        (1, |it, field| field.text(&mut it.r#type)),
        (2, |it, field| field.text(&mut it.address)),
    ];
}

impl WireObject for NodeObject<'_> {
    type Object = model::Node;

    fn parse(&self, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        let name = self.metadata.cluster_object_name("Node")?;
        let labels = &self.metadata.labels;
        Ok(Parser::parse("Node", name, interner, |name, parser| {
            Some(model::Node {
                name: parser.intern(name.name()),
                addresses: self.addresses(parser),
                zone: zone_or_region("zone", &labels.zone, parser),
                region: zone_or_region("region", &labels.region, parser),
                pod_cidrs: self.pod_cidrs(parser),
                is_leaving: self.is_leaving(),
            })
        }))
    }
}

impl NodeObject<'_> {
    /// Parses the node's location.
    ///
    /// # Errors
    /// As [`NodeLabels::parse`].
    pub fn location(
        &self,
        interner: &mut Interner,
    ) -> Result<Parsed<model::NodeLocation>, Problem> {
        let name = self.metadata.cluster_object_name("Node")?;
        let region = &self.metadata.labels.region;
        Ok(Parser::parse("Node", name, interner, |name, parser| {
            Some(model::NodeLocation {
                addresses: self.addresses(parser),
                ..location(name, region, parser)
            })
        }))
    }

    /// Parses the internal addresses, then the external ones; host names are ignored.
    fn addresses(&self, parser: &mut Parser<'_>) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        // kube-proxy's order, which decides what `--nodeport-addresses=primary` means.
        for wanted in ["InternalIP", "ExternalIP"] {
            for (index, entry) in self.status.addresses.iter().enumerate() {
                if entry.r#type.as_str() != Some(wanted) {
                    continue;
                }
                let field = format_args!("status.addresses[{index}].address");
                let address = parser.address(field, &entry.address, why_unusable, "ignored");
                addresses.extend(address.filter(|address| !addresses.contains(address)));
            }
        }
        addresses
    }

    /// Returns whether the Node is being deleted, or the cluster autoscaler is about to delete it.
    fn is_leaving(&self) -> bool {
        let mut taints = self.spec.taints.iter();
        !self.metadata.deletion_timestamp.is_blank()
            || taints.any(|taint| taint.key.as_str() == Some(AUTOSCALER_TAINT))
    }

    /// Parses `spec.podCIDRs`, or the older `spec.podCIDR` if the list is empty.
    fn pod_cidrs(&self, parser: &mut Parser<'_>) -> Vec<Cidr> {
        let NodeSpec {
            pod_cidr,
            pod_cidrs,
            ..
        } = &self.spec;
        if !pod_cidrs.is_empty() || pod_cidr.is_blank() {
            return parser.networks("spec.podCIDRs", pod_cidrs);
        }
        parser
            .network("spec.podCIDR", pod_cidr)
            .into_iter()
            .collect()
    }
}

impl WireObject for NodeLabels<'_> {
    type Object = model::NodeLocation;

    fn parse(&self, interner: &mut Interner) -> Result<Parsed<Self::Object>, Problem> {
        let name = self.metadata.cluster_object_name("Node")?;
        let region = &self.metadata.labels.region;
        Ok(Parser::parse("Node", name, interner, |name, parser| {
            Some(location(name, region, parser))
        }))
    }
}

/// Returns the location that a Node's metadata tells.
fn location(
    name: &ObjectName,
    region: &Scalar<'_>,
    parser: &mut Parser<'_>,
) -> model::NodeLocation {
    model::NodeLocation {
        name: parser.intern(name.name()),
        region: zone_or_region("region", region, parser),
        addresses: Vec::new(),
    }
}

/// Parses the label of a zone or region.
fn zone_or_region(what: &str, label: &Scalar<'_>, parser: &mut Parser<'_>) -> Option<Arc<str>> {
    if label.is_blank() {
        return None;
    }
    let name = label.as_str().filter(|text| is_zone(text));
    if name.is_none() {
        let field = format_args!("metadata.labels[topology.kubernetes.io/{what}]");
        parser.problem(field, label, format!("is not a {what}; the node has none"));
    }
    name.map(|text| parser.intern(text))
}

/// Returns whether `text` can name a zone or a region.
pub(super) fn is_zone(text: &str) -> bool {
    (1..=253).contains(&text.len())
}
