//! Allocates cluster IPs for Services without one.
//!
//! The API server allocates at random and stores the result. Here nothing is stored, so an address
//! is computed from the Service's name (see [`Pool`]): the same in every run with the same Services, for every
//! order of files. A running process keeps the addresses it allocated when Services are added. An address that a
//! manifest specifies is never given to another Service.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::inventory::Located;
use super::pool::{Assigned, Numbers, Pool};
use crate::cluster::api::{self, Scalar, parse_address, parse_family};
use crate::cluster::model::{Cidr, Family, ObjectName};

/// The maximum number of addresses that are used of a network; only IPv6 networks have more.
const MAX_SIZE: u64 = 1 << 32;

/// Allocates a cluster IP from `networks` for each Service without one, as long as some are free.
///
/// `numbers` has those of the load before for each range; see [`Pool::assign`], also for `are_all`.
pub(super) fn assign(
    services: &mut BTreeMap<ObjectName, Located<api::ServiceObject<'static>>>,
    networks: &[Cidr],
    numbers: &mut Vec<Numbers>,
    are_all: bool,
) {
    let mut ranges = ranges(networks);
    // Before any allocation, because a later Service may specify the address.
    let given = services
        .values()
        .filter_map(|it| given_addresses(&it.object));
    for address in given.flatten() {
        ranges.iter_mut().for_each(|range| range.reserve(address));
    }
    let requests = services.iter_mut();
    let mut requests: Vec<AddressRequest<'_>> = requests
        .filter_map(|(name, located)| AddressRequest::new(name, located, networks))
        .collect();
    // The networks of a process never change, nor do its ranges.
    numbers.resize_with(ranges.len(), Numbers::default);
    for (range, numbers) in ranges.iter_mut().zip(numbers) {
        let family = range.network.family();
        let lacking = requests.iter_mut().filter(|it| it.lacks(family));
        let mut lacking: Vec<&mut AddressRequest<'_>> = lacking.collect();
        let claims: Vec<String> = lacking.iter().map(|it| it.name.clone()).collect();
        let assigned = range.pool.assign(&claims, numbers, are_all);
        for (request, Assigned { number, lost }) in lacking.iter_mut().zip(assigned) {
            let address = number.map(|number| range.address(number));
            request.addresses.extend(address);
            if let (Some(address), Some(lost)) = (address, lost) {
                let lost = range.address(lost);
                request.problem("spec.clusterIP", moved(lost, address));
            }
        }
    }
    for request in requests {
        request.finish(networks);
    }
}

/// Returns what the operator must know of a Service whose address or port is another one than before.
pub(super) fn moved<T: Display>(lost: T, number: T) -> String {
    format!("{lost} was allocated before, but is specified now; {number} is allocated instead")
}

/// Returns the addresses that the manifest specifies; `None` if one of them is invalid.
///
/// A Service with an invalid address gets no allocation, and parsing reports that address.
fn given_addresses(service: &api::ServiceObject<'_>) -> Option<Vec<IpAddr>> {
    let spec = &service.spec;
    let single = [spec.cluster_ip.clone()];
    let list = if spec.cluster_ips.is_empty() {
        &single[..]
    } else {
        &spec.cluster_ips
    };
    let written = list.iter().filter(|text| !text.is_blank());
    written
        .map(|text| text.as_str().and_then(parse_address))
        .collect()
}

/// Returns the address families of the Service, the primary one first.
fn wanted_families(
    service: &api::ServiceObject<'_>,
    given: &[IpAddr],
    networks: &[Cidr],
) -> Vec<Family> {
    let spec = &service.spec;
    let mut families: Vec<Family> = spec.ip_families.iter().filter_map(parse_family).collect();
    families.extend(given.iter().map(|&address| Family::from(address)));
    if families.is_empty() {
        families.push(networks.first().map_or(Family::V4, Cidr::family));
    }
    let wants_both = match spec.ip_family_policy.as_str() {
        Some("RequireDualStack") => true,
        // A Service with an address comes from an API server. It would have allocated both
        // addresses if it had a network of the other family.
        Some("PreferDualStack") => given.is_empty(),
        _ => false,
    };
    if wants_both {
        families.extend([Family::V4, Family::V6]);
    }
    let main = families.first().copied();
    // The first family stays first: it decides the type of `spec.clusterIP`.
    families.sort_by_key(|&family| (Some(family) != main, family));
    families.dedup();
    families
}

/// A Service with its addresses and the families it needs.
struct AddressRequest<'a> {
    /// The name from which the address is computed.
    name: String,
    located: &'a mut Located<api::ServiceObject<'static>>,
    /// The number of addresses that its manifest specifies.
    written: usize,
    addresses: Vec<IpAddr>,
    wanted: Vec<Family>,
}

impl<'a> AddressRequest<'a> {
    /// Returns the request of a Service. `None` if the Service is headless, of type `ExternalName`, of another
    /// proxy, or specifies an invalid address.
    fn new(
        name: &ObjectName,
        located: &'a mut Located<api::ServiceObject<'static>>,
        networks: &[Cidr],
    ) -> Option<Self> {
        let is_ours = located.object.metadata.labels.service_proxy_name == Scalar::Absent;
        if !is_ours || !located.object.has_addresses() {
            return None;
        }
        let addresses = given_addresses(&located.object)?;
        Some(Self {
            name: name.to_string(),
            written: addresses.len(),
            wanted: wanted_families(&located.object, &addresses, networks),
            addresses,
            located,
        })
    }

    /// Returns whether the Service wants an address of `family` and has none.
    fn lacks(&self, family: Family) -> bool {
        let mut given = self.addresses.iter();
        self.wanted.contains(&family) && !given.any(|&address| Family::from(address) == family)
    }

    fn problem(&mut self, field: &str, message: String) {
        let object = format!("Service {}", self.name);
        self.located.add_problem(&object, field, message);
    }

    /// Writes the addresses into the Service, and reports missing ones as problems.
    fn finish(mut self, networks: &[Cidr]) {
        let missing = self.wanted.iter().copied();
        let missing: Vec<Family> = missing.filter(|&family| self.lacks(family)).collect();
        let spec = &self.located.object.spec;
        let is_preferred = spec.ip_family_policy.as_str() == Some("PreferDualStack");
        self.located.is_unservable = self.addresses.is_empty();
        for family in missing {
            let has_network = networks.iter().any(|network| network.family() == family);
            let reason = match (networks, family) {
                ([], _) => "--service-cidr is not set",
                (_, Family::V4) => "--service-cidr has no free IPv4 address",
                (_, Family::V6) => "--service-cidr has no free IPv6 address",
            };
            let Some(given) = self.addresses.first() else {
                // One problem is enough for a Service without any address.
                let message = format!("is missing, and {reason}; the Service is not served");
                return self.problem("spec.clusterIP", message);
            };
            // `PreferDualStack` is satisfied by one family if there is no network of the other.
            if !is_preferred || has_network {
                let message =
                    format!("of two families are wanted, and {reason}; only {given} is served");
                self.problem("spec.clusterIPs", message);
            }
        }
        // Without an allocation the manifest's own fields stay, so that parsing reports their problems.
        if self.addresses.len() > self.written {
            let place = |address: &IpAddr| {
                let family = Family::from(*address);
                self.wanted.iter().position(|wanted| *wanted == family)
            };
            self.addresses.sort_by_key(place);
            let texts = self.addresses.iter().map(IpAddr::to_string);
            let spec = &mut self.located.object.spec;
            spec.cluster_ips = texts.map(Scalar::from).collect();
            spec.cluster_ip = spec.cluster_ips.first().cloned().unwrap_or_default();
        }
    }
}

/// A network from which addresses are allocated.
struct Range {
    network: Cidr,
    pool: Pool,
}

/// Returns the ranges of `networks`.
///
/// Of two overlapping networks one contains the other, and only the larger one is used. Of equal
/// networks the first is used.
fn ranges(networks: &[Cidr]) -> Vec<Range> {
    let indexed = networks.iter().enumerate();
    let disjoint = indexed.clone().filter(|&(index, network)| {
        !indexed.clone().any(|(other_index, other)| {
            other.contains(network.network())
                && (other.prefix_len(), other_index) < (network.prefix_len(), index)
        })
    });
    disjoint.map(|(_, &network)| Range::new(network)).collect()
}

impl Range {
    /// Returns the addresses of `network` without its first one and, for IPv4, its last one.
    ///
    /// The second address, number 0, is reserved for the Service `default/kubernetes`.
    fn new(network: Cidr) -> Self {
        let (bits, ends) = match network.family() {
            Family::V4 => (32, 2),
            Family::V6 => (128, 1),
        };
        let host_bits = bits - u32::from(network.prefix_len());
        let all = 1_u64
            .checked_shl(host_bits)
            .map_or(MAX_SIZE, |all| all.min(MAX_SIZE));
        let size = all.saturating_sub(ends);
        // KEP-3070: a sixteenth of the range, at least 16 and at most 256 addresses.
        let low = if size < 16 {
            0
        } else {
            (size / 16).clamp(16, 256)
        };
        let mut pool = Pool::new(size, low);
        pool.reserve(0);
        Self { network, pool }
    }

    /// Excludes `address` from allocation.
    fn reserve(&mut self, address: IpAddr) {
        if self.network.contains(address) {
            let offset = to_bits(address) - to_bits(self.network.network());
            // The network's first address has no number.
            let number = offset.checked_sub(1).and_then(|it| u64::try_from(it).ok());
            number.into_iter().for_each(|it| self.pool.reserve(it));
        }
    }

    fn address(&self, number: u64) -> IpAddr {
        let offset = u128::from(number) + 1;
        match self.network.network() {
            IpAddr::V4(base) => {
                let offset = u32::try_from(offset).unwrap_or_default();
                Ipv4Addr::from_bits(base.to_bits().wrapping_add(offset)).into()
            }
            IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits().wrapping_add(offset)).into(),
        }
    }
}

fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
