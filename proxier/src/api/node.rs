//! Nodes on the wire.

use std::sync::Arc;

use serde::Deserialize;

use super::address::{parse_network, why_unusable};
use super::findings::Findings;
use super::metadata::Metadata;
use super::or_default;
use super::scalar::Scalar;
use crate::model::{self, Cidr};
use crate::problem::Problem;
use crate::store::{Interner, Parsed};

/// `v1` `Node`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
pub struct Node {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    spec: NodeSpec,
    #[serde(deserialize_with = "or_default")]
    status: NodeStatus,
}

/// `v1` `Node` reduced to its labels, for nodes other than ours. Also deserializes from a
/// `meta.k8s.io/v1` `PartialObjectMetadata`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
pub struct NodeLabels {
    #[serde(deserialize_with = "or_default")]
    metadata: Metadata,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Scalar,
    #[serde(rename = "podCIDRs", deserialize_with = "or_default")]
    pod_cidrs: Vec<Scalar>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
struct NodeStatus {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
struct NodeAddress {
    r#type: Scalar,
    address: Scalar,
}

impl Node {
    /// Parses the object: internal addresses, then external ones; host names are ignored.
    ///
    /// # Errors
    /// If the object has no valid name.
    pub fn parse(&self, interner: &mut Interner) -> Result<(model::Node, Vec<Problem>), Problem> {
        let name = self.metadata.cluster_name("Node")?;
        let mut findings = Findings::new("Node", name);
        let mut addresses = Vec::new();
        // kube-proxy's order, which decides what `--nodeport-addresses=primary` means.
        for wanted in ["InternalIP", "ExternalIP"] {
            for (index, entry) in self.status.addresses.iter().enumerate() {
                if entry.r#type.as_str() != Some(wanted) {
                    continue;
                }
                let field = format!("status.addresses[{index}].address");
                let address = findings.address(&field, &entry.address, why_unusable, "ignored");
                addresses.extend(address.filter(|address| !addresses.contains(address)));
            }
        }
        let labels = &self.metadata.labels;
        let node = model::Node {
            name: interner.intern(name),
            addresses,
            zone: zone_or_region("zone", &labels.zone, interner, &mut findings),
            region: zone_or_region("region", &labels.region, interner, &mut findings),
            pod_cidrs: self.pod_cidrs(&mut findings),
        };
        Ok((node, findings.into_problems()))
    }

    /// Parses the node's location.
    ///
    /// # Errors
    /// As [`NodeLabels::parse`].
    pub fn location(
        &self,
        interner: &mut Interner,
    ) -> Result<Parsed<model::NodeLocation>, Problem> {
        let metadata = self.metadata.clone();
        NodeLabels { metadata }.parse(interner)
    }

    /// Parses `spec.podCIDRs`, or the older `spec.podCIDR` if the list is empty.
    fn pod_cidrs(&self, findings: &mut Findings) -> Vec<Cidr> {
        let spec = &self.spec;
        let mut networks = Vec::new();
        let mut read = |field: &str, text: &Scalar| match text.as_str().and_then(parse_network) {
            Some(network) if networks.contains(&network) => {}
            Some(network) => networks.push(network),
            None => findings.add(field, text, "is not a network in CIDR form; ignored"),
        };
        if spec.pod_cidrs.is_empty() && !spec.pod_cidr.is_blank() {
            read("spec.podCIDR", &spec.pod_cidr);
        }
        for (index, text) in spec.pod_cidrs.iter().enumerate() {
            read(&format!("spec.podCIDRs[{index}]"), text);
        }
        networks
    }
}

impl NodeLabels {
    /// Parses the object.
    ///
    /// # Errors
    /// If the object has no valid name.
    pub fn parse(&self, interner: &mut Interner) -> Result<Parsed<model::NodeLocation>, Problem> {
        let name = self.metadata.cluster_object_name("Node", interner)?;
        let mut findings = Findings::new("Node", &name);
        let region = &self.metadata.labels.region;
        let object = model::NodeLocation {
            name: name.name.clone(),
            region: zone_or_region("region", region, interner, &mut findings),
        };
        Ok(Parsed {
            name,
            object: Some(object),
            problems: findings.into_problems(),
        })
    }
}

/// Parses the label of a zone or region.
fn zone_or_region(
    what: &str,
    label: &Scalar,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Option<Arc<str>> {
    if label.is_blank() {
        return None;
    }
    let name = label.as_str().filter(|text| is_zone(text));
    if name.is_none() {
        let field = format!("metadata.labels[topology.kubernetes.io/{what}]");
        findings.add(field, label, format!("is not a {what}; the node has none"));
    }
    name.map(|text| interner.intern(text))
}

/// Returns whether `text` can name a zone or a region.
pub(super) fn is_zone(text: &str) -> bool {
    (1..=253).contains(&text.len())
}
