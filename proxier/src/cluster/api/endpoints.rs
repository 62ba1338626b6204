//! Legacy Endpoints objects on the wire, and their mirroring to EndpointSlices.
//!
//! In a cluster the control plane mirrors them, and a proxy reads only the slices. Manifests have no
//! control plane, so this module mirrors them by the same rules.

use serde::Deserialize;

use super::address::why_unusable_or_link_local;
use super::endpoint_slice::{SlicePortObject, node_name, slice_ports};
use super::metadata::Metadata;
use super::or_default;
use super::parser::Parser;
use super::scalar::Scalar;
use crate::cluster::model::{self, Family, Hints, ObjectName};
use crate::cluster::store::{Interner, Parsed};

/// The maximum number of mirrored addresses of a subset, as in the control plane.
const MAX_ADDRESSES: usize = 1000;

/// `v1` `Endpoints`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
pub(crate) struct Endpoints<'a> {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata<'a>,
    #[serde(deserialize_with = "or_default")]
    subsets: Vec<Subset<'a>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct Subset<'a> {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<SubsetAddress<'a>>,
    #[serde(deserialize_with = "or_default")]
    not_ready_addresses: Vec<SubsetAddress<'a>>,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<SlicePortObject<'a>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(default, expecting = "a mapping", bound(deserialize = "'de: 'a"))]
struct SubsetAddress<'a> {
    ip: Scalar<'a>,
    node_name: Scalar<'a>,
}

impl Endpoints<'_> {
    /// Returns whether the object may be mirrored: it has neither the label
    /// `endpointslice.kubernetes.io/skip-mirror` nor the annotation of a leader election.
    ///
    /// The control plane also requires that its Service exists and has no selector, which the
    /// caller must check.
    pub(crate) fn wants_mirror(&self) -> bool {
        // Compared as text, because the unquoted YAML value `true` is a boolean.
        self.metadata.labels.skip_mirror.to_string() != "true"
            && self.metadata.annotations.leader == Scalar::Absent
    }

    /// Returns the slices of the object `name`: one per subset and family with addresses, in the
    /// object's order, named `<name>-mirrored-<subset>-<family>`.
    ///
    /// The first slice carries the problems of the Endpoints object. If there are problems but no
    /// addresses, it is a slice without an object.
    pub(crate) fn mirror(
        &self,
        name: &ObjectName,
        interner: &mut Interner,
    ) -> Vec<Parsed<model::EndpointSlice>> {
        let all = Parser::parse("Endpoints", name.clone(), interner, |name, parser| {
            let subsets = self.subsets.iter().enumerate();
            let slices = subsets.flat_map(|(index, it)| it.mirror(name, index, parser));
            Some(slices.collect::<Vec<_>>())
        });
        let slices = all.object.into_iter().flatten().map(|slice| Parsed {
            name: slice.name.clone(),
            object: Some(slice),
            problems: Vec::new(),
            changed: None,
        });
        let mut slices: Vec<_> = slices.collect();
        if slices.is_empty() && !all.problems.is_empty() {
            slices.push(Parsed {
                name: slice_name(name, 0, "ipv4"),
                object: None,
                problems: Vec::new(),
                changed: None,
            });
        }
        if let Some(first) = slices.first_mut() {
            first.problems = all.problems;
        }
        slices
    }
}

impl Subset<'_> {
    fn mirror(
        &self,
        name: &ObjectName,
        index: usize,
        parser: &mut Parser<'_>,
    ) -> Vec<model::EndpointSlice> {
        let at = format!("subsets[{index}]");
        let ports = slice_ports(&format!("{at}.ports"), &self.ports, parser);
        let ready = self.addresses.iter().map(|address| (address, true));
        let unready = self
            .not_ready_addresses
            .iter()
            .map(|address| (address, false));
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (place, (address, is_ready)) in ready.chain(unready).enumerate() {
            let at = match place.checked_sub(self.addresses.len()) {
                None => format!("{at}.addresses[{place}]"),
                Some(place) => format!("{at}.notReadyAddresses[{place}]"),
            };
            // Both lists share the limit, and ready addresses come first.
            if v4.len() + v6.len() == MAX_ADDRESSES {
                let message = format!(
                    "exceeds {MAX_ADDRESSES} addresses of the subset; this and later ones are ignored"
                );
                parser.problem(at, &address.ip, message);
                break;
            }
            let Some(endpoint) = address.read(&at, is_ready, parser) else {
                continue;
            };
            match Family::from(endpoint.address) {
                Family::V4 => v4.push(endpoint),
                Family::V6 => v6.push(endpoint),
            }
        }
        [("ipv4", v4), ("ipv6", v6)]
            .into_iter()
            .filter(|(_, endpoints)| !endpoints.is_empty())
            .map(|(family, endpoints)| model::EndpointSlice {
                name: slice_name(name, index, family),
                service: name.clone(),
                ports: ports.clone(),
                endpoints: endpoints.into(),
            })
            .collect()
    }
}

impl SubsetAddress<'_> {
    fn read(&self, at: &str, is_ready: bool, parser: &mut Parser<'_>) -> Option<model::Endpoint> {
        let refuse = why_unusable_or_link_local;
        let instead = "the address is skipped";
        let address = parser.address(format_args!("{at}.ip"), &self.ip, refuse, instead)?;
        let node = node_name(format_args!("{at}.nodeName"), &self.node_name, parser);
        Some(model::Endpoint {
            address,
            is_ready,
            // The control plane's copies lack these conditions, and these are the API's defaults.
            is_serving: true,
            is_terminating: false,
            location: (parser.interner).location(node.as_deref(), None, Hints::default()),
        })
    }
}

fn slice_name(endpoints: &ObjectName, subset: usize, family: &str) -> ObjectName {
    let name = format!("{}-mirrored-{subset}-{family}", endpoints.name());
    ObjectName::new(endpoints.namespace(), name)
}
