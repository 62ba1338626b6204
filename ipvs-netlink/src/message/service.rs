//! Encodes and decodes virtual servers.

use crate::message::{
    address_bytes, family_number, read_address, read_family, read_stats, required,
};
use crate::name::Name;
use crate::service::{ClientMask, Service, ServiceEntry, ServiceFlags, ServiceKey};
use crate::sys::{
    IPVS_SVC_ATTR_ADDR, IPVS_SVC_ATTR_AF, IPVS_SVC_ATTR_FLAGS, IPVS_SVC_ATTR_FWMARK,
    IPVS_SVC_ATTR_NETMASK, IPVS_SVC_ATTR_PE_NAME, IPVS_SVC_ATTR_PORT, IPVS_SVC_ATTR_PROTOCOL,
    IPVS_SVC_ATTR_SCHED_NAME, IPVS_SVC_ATTR_STATS, IPVS_SVC_ATTR_STATS64, IPVS_SVC_ATTR_TIMEOUT,
};
use netlink::Family;
use netlink::attr::{Attribute, Writer};
use netlink::{Error, Result};

/// The scheduler name that means "bound to no scheduler" (`ip_vs_genl_fill_service`).
const NO_SCHEDULER: &str = "none";

/// Writes the key of a virtual server.
pub fn write_service_key(writer: &mut Writer<'_>, key: &ServiceKey) {
    writer.u16(IPVS_SVC_ATTR_AF, family_number(key.family()));
    match *key {
        ServiceKey::Address {
            protocol,
            address,
            port,
        } => {
            writer.u16(IPVS_SVC_ATTR_PROTOCOL, protocol.into());
            writer.bytes(IPVS_SVC_ATTR_ADDR, &address_bytes(address));
            writer.u16_be(IPVS_SVC_ATTR_PORT, port);
        }
        ServiceKey::Mark { mark, .. } => writer.u32(IPVS_SVC_ATTR_FWMARK, mark),
    }
}

/// Writes all fields of a virtual server.
pub fn write_service(writer: &mut Writer<'_>, service: &Service) {
    write_service_key(writer, &service.key);
    let scheduler = service
        .scheduler
        .as_ref()
        .map_or(NO_SCHEDULER, Name::as_str);
    writer.string(IPVS_SVC_ATTR_SCHED_NAME, scheduler);
    if let Some(engine) = &service.engine {
        writer.string(IPVS_SVC_ATTR_PE_NAME, engine.as_str());
    }
    // `struct ip_vs_flags`: the flags, then a mask of the bits to change. With a full mask every
    // flag is set or cleared; bits outside the mask would keep their old value.
    let mut flags = [0xff; 8];
    flags[..4].copy_from_slice(&service.flags.bits().to_ne_bytes());
    writer.bytes(IPVS_SVC_ATTR_FLAGS, &flags);
    writer.u32(IPVS_SVC_ATTR_TIMEOUT, service.timeout_secs);
    // Timeout and mask are required: without them the kernel returns EINVAL, even if the service
    // has no affinity.
    match service.client_mask {
        ClientMask::V4(mask) => writer.u32_be(IPVS_SVC_ATTR_NETMASK, mask),
        ClientMask::V6(prefix) => writer.u32(IPVS_SVC_ATTR_NETMASK, prefix),
    }
}

/// Reads a virtual server from the value of its attribute.
///
/// # Errors
/// [`Error::Malformed`] if the family or the key is missing, or an attribute is too short.
pub fn read_service(attribute: &Attribute<'_>) -> Result<ServiceEntry> {
    let mut read = Parts::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            IPVS_SVC_ATTR_AF => read.family = Some(read_family(&attribute)?),
            IPVS_SVC_ATTR_PROTOCOL => read.protocol = Some(attribute.u16()?),
            IPVS_SVC_ATTR_ADDR => read.address = Some(attribute),
            IPVS_SVC_ATTR_PORT => read.port = Some(attribute.u16_be()?),
            IPVS_SVC_ATTR_FWMARK => read.mark = Some(attribute.u32()?),
            IPVS_SVC_ATTR_SCHED_NAME => read.scheduler = attribute.string()?,
            IPVS_SVC_ATTR_PE_NAME => read.engine = attribute.string()?,
            IPVS_SVC_ATTR_FLAGS => read.flags = attribute.u32()?,
            IPVS_SVC_ATTR_TIMEOUT => read.timeout_secs = attribute.u32()?,
            IPVS_SVC_ATTR_NETMASK => read.mask = Some(attribute),
            IPVS_SVC_ATTR_STATS => read.stats = Some(attribute),
            IPVS_SVC_ATTR_STATS64 => read.stats64 = Some(attribute),
            _ => {}
        }
    }
    read.assemble()
}

/// The attributes of a virtual server.
///
/// Address and mask are decoded after all attributes are known: their form depends on the family.
#[derive(Default)]
struct Parts<'a> {
    family: Option<Family>,
    protocol: Option<u16>,
    address: Option<Attribute<'a>>,
    port: Option<u16>,
    mark: Option<u32>,
    scheduler: &'a str,
    engine: &'a str,
    flags: u32,
    timeout_secs: u32,
    mask: Option<Attribute<'a>>,
    stats: Option<Attribute<'a>>,
    stats64: Option<Attribute<'a>>,
}

impl Parts<'_> {
    fn assemble(self) -> Result<ServiceEntry> {
        let family = required(self.family, "a service has no address family")?;
        let key = match self.mark {
            Some(mark) => ServiceKey::Mark { family, mark },
            None => ServiceKey::Address {
                protocol: required(self.protocol, "a service has no protocol")?.into(),
                address: read_address(
                    &required(self.address, "a service has no address")?,
                    family,
                )?,
                port: required(self.port, "a service has no port")?,
            },
        };
        let client_mask = match (self.mask, family) {
            (None, family) => ClientMask::host(family),
            (Some(mask), Family::V4) => ClientMask::V4(mask.u32_be()?),
            (Some(mask), Family::V6) => ClientMask::V6(mask.u32()?),
        };
        let scheduler = match self.scheduler {
            NO_SCHEDULER | "" => None,
            name => Some(name),
        };
        let service = Service {
            key,
            scheduler: scheduler.map(kernel_name).transpose()?,
            flags: ServiceFlags::from_bits(self.flags).without(ServiceFlags::HASHED),
            timeout_secs: self.timeout_secs,
            client_mask,
            engine: Some(self.engine)
                .filter(|name| !name.is_empty())
                .map(kernel_name)
                .transpose()?,
        };
        let stats = self.stats64.or(self.stats);
        Ok(ServiceEntry {
            service,
            stats: stats
                .map(|stats| read_stats(&stats))
                .transpose()?
                .unwrap_or_default(),
        })
    }
}

fn kernel_name<const MAX: usize>(name: &str) -> Result<Name<MAX>> {
    Name::new(name)
        .map_err(|_| Error::malformed("a scheduler or engine name is longer than its field"))
}
