//! Where virtual servers are, in words of the rules.

use ipvs_netlink as ipvs;

use crate::model::Protocol;
use crate::rules::Place;

/// The virtual server that is there.
pub(super) fn key(place: &Place) -> ipvs::ServiceKey {
    ipvs::ServiceKey::Address {
        protocol: u16::from(place.protocol.number()).into(),
        address: place.address,
        port: place.port,
    }
}

/// Where a virtual server is, if it has an address and a Service can have its protocol.
pub(super) fn place(key: &ipvs::ServiceKey) -> Option<Place> {
    let ipvs::ServiceKey::Address {
        protocol,
        address,
        port,
    } = *key
    else {
        return None;
    };
    let number = u8::try_from(u16::from(protocol)).ok()?;
    Some(Place {
        address,
        protocol: Protocol::from_number(number)?,
        port,
    })
}
