//! Nodes on the wire.

use serde::Deserialize;

use super::address::unusable;
use super::findings::Findings;
use super::metadata::Metadata;
use super::or_default;
use super::scalar::Scalar;
use crate::model;
use crate::problem::Problem;
use crate::store::Interner;

/// `v1` `Node`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping")]
pub struct Node {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    status: NodeStatus,
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
    /// Reads the object: internal addresses first, then external ones; host names are passed over.
    ///
    /// # Errors
    /// When the object has no valid name, so that nothing can be said about it.
    pub fn parse(&self, interner: &mut Interner) -> Result<(model::Node, Vec<Problem>), Problem> {
        let name = self.metadata.cluster_name("Node")?;
        let mut findings = Findings::new("Node", name);
        let mut addresses = Vec::new();
        for wanted in ["InternalIP", "ExternalIP"] {
            for (index, entry) in self.status.addresses.iter().enumerate() {
                if entry.r#type.as_str() != Some(wanted) {
                    continue;
                }
                let field = format!("status.addresses[{index}].address");
                let address = findings.address(&field, &entry.address, unusable, "left out");
                addresses.extend(address.filter(|address| !addresses.contains(address)));
            }
        }
        let zone = &self.metadata.labels.zone;
        let node = model::Node {
            name: interner.intern(name),
            addresses,
            zone: zone
                .as_str()
                .filter(|zone| is_zone(zone))
                .map(|zone| interner.intern(zone)),
        };
        if node.zone.is_none() && !zone.is_blank() {
            let field = "metadata.labels[topology.kubernetes.io/zone]";
            findings.add(field, zone, "is not a zone; the node has none");
        }
        Ok((node, findings.into_problems()))
    }
}

fn is_zone(zone: &str) -> bool {
    (1..=253).contains(&zone.len())
}
