//! A virtual server decoded from arbitrary bytes encodes and decodes to itself.

#![no_main]

use ipvs_netlink::message::{read_service, write_service};
use libfuzzer_sys::fuzz_target;
use netlink::attr::Attribute;
use netlink::batch::Batch;

fuzz_target!(|bytes: &[u8]| {
    let Ok(entry) = read_service(&attribute(bytes)) else {
        return;
    };
    let mut batch = Batch::new();
    let written = batch.push(16, 0, |writer| write_service(writer, &entry.service));
    written.expect("all attributes of a service have a bounded size");
    let again = read_service(&attribute(&batch.as_bytes()[16..]));
    assert_eq!(
        again.expect("an encoded service can be decoded").service,
        entry.service
    );
});

fn attribute(value: &[u8]) -> Attribute<'_> {
    Attribute { kind: 1, value }
}
