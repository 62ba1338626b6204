//! A destination decoded from arbitrary bytes encodes and decodes to itself.

#![no_main]

use ipvs_netlink::Family;
use ipvs_netlink::message::{read_destination, write_destination};
use libfuzzer_sys::fuzz_target;
use netlink::attr::Attribute;
use netlink::batch::Batch;

fuzz_target!(|bytes: &[u8]| {
    for family in [Family::V4, Family::V6] {
        let Ok(entry) = read_destination(&attribute(bytes), family) else {
            continue;
        };
        let destination = entry.destination;
        let mut batch = Batch::new();
        let written = batch.push(16, 0, |writer| write_destination(writer, &destination));
        written.expect("all attributes of a destination have a bounded size");
        let again = read_destination(&attribute(&batch.as_bytes()[16..]), family);
        assert_eq!(
            again
                .expect("an encoded destination can be decoded")
                .destination,
            destination
        );
    }
});

fn attribute(value: &[u8]) -> Attribute<'_> {
    Attribute { kind: 2, value }
}
