//! The Services and Pods of a generated cluster, and how they change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::ValueEnum;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::objects::{self, Family, PER_SLICE};
use crate::random::Random;

/// The size of a cluster.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) services: u32,
    /// Endpoints per Service and family.
    pub(crate) endpoints: u32,
    pub(crate) families: Families,
    /// The number of Services that have a node port.
    pub(crate) node_ports: u32,
    /// The number of addresses of the node.
    pub(crate) node_addresses: u8,
}

/// The address families of all Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Families {
    V4,
    V6,
    Dual,
}

impl Families {
    pub(crate) fn list(self) -> &'static [Family] {
        match self {
            Self::V4 => &[Family::V4],
            Self::V6 => &[Family::V6],
            Self::Dual => &[Family::V4, Family::V6],
        }
    }
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChangeKind {
    /// A Pod of a random Service is replaced by one with another address.
    Replace,
    /// A random Service gains a Pod; a later change removes it.
    Scale,
    /// A random Service gets all Pods replaced, as after its deletion and creation.
    Redeploy,
    /// Replaces the Pods of one Service after the other. Each Pod is a change of its own.
    Rolling,
}

/// A change of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The new versions of slices.
    pub(crate) slices: Vec<EndpointSlice>,
    /// The last four bytes of each new address, by which the kernel's messages show it.
    pub(crate) words: Vec<u32>,
    /// The same of the removed addresses. The proxy may never mention them to the kernel.
    pub(crate) removed: Vec<u32>,
}

/// The Pods of all Services.
#[derive(Clone, Debug)]
pub(crate) struct Population {
    shape: Shape,
    /// The Pods of each Service.
    pods: Vec<Vec<u32>>,
    /// The number of the next new Pod.
    next: u32,
    dice: Random,
    /// The Service and the Pod that a rolling restart replaces next.
    rolling: (u32, usize),
    /// The Services that gained a Pod and have not lost it yet.
    scaled: Vec<u32>,
}

impl Population {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let Shape {
            services,
            endpoints,
            ..
        } = shape;
        let pods = |service| (service * endpoints..(service + 1) * endpoints).collect();
        Self {
            shape,
            pods: (0..services).map(pods).collect(),
            next: services * endpoints,
            dice: Random::new(seed, 0),
            rolling: (0, 0),
            scaled: Vec::new(),
        }
    }

    /// Returns the addresses of the node, those of IPv4 first.
    pub(crate) fn node_addresses(&self) -> Vec<IpAddr> {
        let number = self.shape.node_addresses;
        let v4 = (0..number).map(|last| Ipv4Addr::new(192, 168, 0, 17 + last).into());
        let v6 = (0..number)
            .map(|last| Ipv6Addr::new(0xfd00, 0x192, 0, 0, 0, 0, 0, 17 + u16::from(last)));
        match self.shape.families {
            Families::V4 => v4.collect(),
            Families::V6 => v6.map(IpAddr::from).collect(),
            Families::Dual => v4.chain(v6.map(IpAddr::from)).collect(),
        }
    }

    /// Returns the address of `default/kubernetes`: as a real server does, the first of the service range.
    pub(crate) fn api_service(&self) -> IpAddr {
        match self.shape.families {
            Families::V6 => Family::V6.first_service_ip(),
            Families::V4 | Families::Dual => Family::V4.first_service_ip(),
        }
    }

    /// Returns the ranges of cluster IPs, separated by commas.
    pub(crate) fn service_ranges(&self) -> String {
        let ranges = self.shape.families.list().iter();
        let ranges: Vec<&str> = ranges.map(|family| family.service_range()).collect();
        ranges.join(",")
    }

    /// Returns the node and all Services with their slices, but not [`Population::api_objects`].
    pub(crate) fn objects(&self) -> impl Iterator<Item = Value> {
        let node = json!(objects::node(&self.node_addresses()));
        let services = (0..self.shape.services).flat_map(|number| {
            let families = self.shape.families.list();
            let node_port = (number < self.shape.node_ports)
                .then(|| u16::try_from(30_000 + number).ok())
                .flatten();
            let service = objects::service(number, families, node_port);
            let slices = self.slices(number).map(|slice| json!(slice));
            std::iter::once(json!(service)).chain(slices)
        });
        std::iter::once(node).chain(services)
    }

    /// Returns the last four bytes of all Pods' addresses.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        let families = self.shape.families.list();
        let of = move |&pod: &u32| families.iter().map(move |family| family.pod_word(pod));
        self.pods.iter().flatten().flat_map(of)
    }

    /// Returns the cluster IP of the last Service and the addresses of its Pods, of the first family.
    pub(crate) fn last_service(&self) -> Option<(IpAddr, Vec<IpAddr>)> {
        let family = self.shape.families.list().first()?;
        let pods = self.pods.last()?.iter().map(|&pod| family.pod_address(pod));
        Some((family.cluster_ip(self.shape.services - 1), pods.collect()))
    }

    /// Returns the number of frontends and of endpoints behind cluster IPs.
    pub(crate) fn endpoints(&self) -> usize {
        let pods: usize = self.pods.iter().map(Vec::len).sum();
        pods * self.shape.families.list().len()
    }

    /// Changes the cluster.
    pub(crate) fn change(&mut self, kind: ChangeKind) -> Change {
        match kind {
            ChangeKind::Replace => {
                let service = self.dice.below(self.shape.services);
                let position = self.dice.below(self.shape.endpoints) as usize;
                self.replace(service, position)
            }
            ChangeKind::Scale => self.scale(),
            ChangeKind::Redeploy => {
                let service = self.dice.below(self.shape.services);
                let removed = std::mem::take(&mut self.pods[service as usize]);
                let pods: Vec<u32> = removed.iter().map(|_| self.new_pod()).collect();
                self.pods[service as usize].clone_from(&pods);
                Change {
                    slices: self.slices(service).collect(),
                    words: self.words_of(&pods),
                    removed: self.words_of(&removed),
                }
            }
            ChangeKind::Rolling => {
                let (service, position) = self.rolling;
                self.rolling = match position + 1 < self.pods[service as usize].len() {
                    true => (service, position + 1),
                    false => ((service + 1) % self.shape.services, 0),
                };
                self.replace(service, position)
            }
        }
    }

    fn replace(&mut self, service: u32, position: usize) -> Change {
        let pod = self.new_pod();
        let pods = &mut self.pods[service as usize];
        let Some(place) = pods.get_mut(position) else {
            // Position 0 of an empty Service: the new Pod is its first endpoint.
            pods.push(pod);
            return self.changed(service, 0, &[pod], &[]);
        };
        let removed = std::mem::replace(place, pod);
        self.changed(service, position, &[pod], &[removed])
    }

    fn scale(&mut self) -> Change {
        // Half of the changes remove, so that the cluster keeps its size.
        if !self.scaled.is_empty() && self.dice.below(2) == 0 {
            let service = self.scaled.swap_remove(0);
            let removed = self.pods[service as usize].pop();
            let position = self.pods[service as usize].len();
            return self.changed(service, position, &[], removed.as_slice());
        }
        let service = self.dice.below(self.shape.services);
        let pod = self.new_pod();
        self.pods[service as usize].push(pod);
        self.scaled.push(service);
        let position = self.pods[service as usize].len() - 1;
        self.changed(service, position, &[pod], &[])
    }

    /// Returns the change of the slices with the Pod at `position`.
    fn changed(&self, service: u32, position: usize, new: &[u32], removed: &[u32]) -> Change {
        let part = position / PER_SLICE;
        let families = self.shape.families.list();
        let slice = |&family| self.slice(service, part, family);
        Change {
            slices: families.iter().map(slice).collect(),
            words: self.words_of(new),
            removed: self.words_of(removed),
        }
    }

    fn words_of(&self, pods: &[u32]) -> Vec<u32> {
        let families = self.shape.families.list();
        let of = |&pod: &u32| families.iter().map(move |family| family.pod_word(pod));
        pods.iter().flat_map(of).collect()
    }

    fn new_pod(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn slices(&self, service: u32) -> impl Iterator<Item = EndpointSlice> {
        let parts = self.pods[service as usize].len().div_ceil(PER_SLICE).max(1);
        let families = self.shape.families.list();
        (0..parts).flat_map(move |part| {
            let slice = move |&family| self.slice(service, part, family);
            families.iter().map(slice)
        })
    }

    fn slice(&self, service: u32, part: usize, family: Family) -> EndpointSlice {
        let pods = self.pods[service as usize].chunks(PER_SLICE).nth(part);
        let name = objects::name(service);
        let suffix = match family {
            Family::V4 => 'x',
            Family::V6 => 'y',
        };
        let name = format!("{name}-{suffix}{part:04}");
        objects::slice(service, &name, family, pods.unwrap_or_default())
    }

    /// Returns the API server's own Service and its endpoint on the node, at this port.
    pub(crate) fn api_objects(&self, port: u16) -> (Service, EndpointSlice) {
        let ip = self.api_service();
        let node = self.node_addresses().into_iter().next();
        let label = (
            "kubernetes.io/service-name".to_owned(),
            "kubernetes".to_owned(),
        );
        let metadata = ObjectMeta {
            name: Some("kubernetes".into()),
            namespace: Some("default".into()),
            labels: Some([label].into()),
            ..ObjectMeta::default()
        };
        let service = Service {
            metadata: metadata.clone(),
            spec: Some(objects::service_spec(&[ip], "https", 443, port.into())),
            status: None,
        };
        let slice = EndpointSlice {
            metadata,
            address_type: Family::of(ip).name().into(),
            ports: Some(vec![objects::slice_port("https", port.into())]),
            endpoints: vec![Endpoint {
                addresses: node.iter().map(IpAddr::to_string).collect(),
                ..Endpoint::default()
            }],
        };
        (service, slice)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shape(services: u32, endpoints: u32) -> Shape {
        Shape {
            services,
            endpoints,
            families: Families::Dual,
            node_ports: 0,
            node_addresses: 1,
        }
    }

    #[test]
    fn large_services_have_several_slices() {
        let population = Population::new(shape(2, 250), 1);
        let objects: Vec<Value> = population.objects().collect();
        let slices = |object: &&Value| object["kind"] == "EndpointSlice";
        // Three slices of each family and Service.
        assert_eq!(objects.iter().filter(slices).count(), 12);
        let words: BTreeSet<u32> = population.words().collect();
        assert_eq!(words.len(), 1_000);
        assert_eq!(population.endpoints(), 1_000);
    }

    #[test]
    fn every_new_address_is_unique() {
        for kind in ChangeKind::value_variants() {
            let mut population = Population::new(shape(3, 2), 7);
            let mut seen: BTreeSet<u32> = population.words().collect();
            for _ in 0..50 {
                let change = population.change(*kind);
                assert!(!change.slices.is_empty());
                for word in change.words {
                    assert!(seen.insert(word), "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn a_rolling_restart_replaces_each_pod_once() {
        let mut population = Population::new(shape(3, 2), 7);
        let before: BTreeSet<u32> = population.words().collect();
        for _ in 0..6 {
            population.change(ChangeKind::Rolling);
        }
        assert!(population.words().all(|word| !before.contains(&word)));
        assert_eq!(population.words().count(), before.len());
    }
}
