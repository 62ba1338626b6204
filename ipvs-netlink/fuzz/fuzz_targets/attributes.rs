//! Attributes from arbitrary bytes can be read as every type, two levels deep, without a panic.

#![no_main]

use ipvs_netlink::message::read_attributes;
use libfuzzer_sys::fuzz_target;
use netlink::attr::{Attribute, attributes};

fuzz_target!(|bytes: &[u8]| {
    for attribute in attributes(bytes).flatten() {
        read_as_every_type(&attribute);
        attribute
            .nested()
            .flatten()
            .for_each(|inner| read_as_every_type(&inner));
    }
    if let Ok(attributes) = read_attributes(bytes) {
        attributes
            .flatten()
            .for_each(|attribute| read_as_every_type(&attribute));
    }
});

fn read_as_every_type(attribute: &Attribute<'_>) {
    let wide_enough = attribute.value.len() >= 8;
    assert_eq!(attribute.u64().is_ok(), wide_enough);
    let _ = (attribute.u8(), attribute.u16(), attribute.u32());
    let _ = (attribute.u16_be(), attribute.u32_be());
    if let Ok(text) = attribute.string() {
        assert!(!text.contains('\0') && text.len() <= attribute.value.len());
    }
}
