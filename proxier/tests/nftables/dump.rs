//! Dumps a table's objects from the kernel as hexadecimal text.

use std::collections::BTreeSet;

use netlink::attr::{Attribute, attributes};
use netlink::transport::{Transport, protocols};

const NFPROTO_INET: u8 = 1;
const NFPROTO_ARP: u8 = 3;
const SUBSYSTEM: u16 = 10 << 8;
const GETCHAIN: u16 = 4;
const GETRULE: u16 = 7;
const GETSET: u16 = 10;
const GETSETELEM: u16 = 13;

/// Returns the chains, rules, sets and elements of the table `name`.
///
/// Leaves out the numbers that the kernel assigns, and userdata, which only nft reads.
pub(crate) fn table(name: &str) -> Vec<String> {
    let families = [NFPROTO_INET, NFPROTO_ARP].into_iter();
    families.flat_map(|family| table_of(family, name)).collect()
}

/// Returns the same of a table that has no companion of family `arp`.
pub(crate) fn inet_table(name: &str) -> Vec<String> {
    table_of(NFPROTO_INET, name)
}

fn table_of(family: u8, name: &str) -> Vec<String> {
    let transport = Transport::open(protocols::NETLINK_NETFILTER).unwrap();
    let mut transport = (transport, family);
    let mut lines = Vec::new();
    // Without handle, use count, counters and userdata.
    lines.extend(objects(
        &mut transport,
        GETCHAIN,
        name,
        None,
        &[2, 6, 8, 12],
    ));
    // Without handle, position, userdata and padding.
    lines.extend(objects(&mut transport, GETRULE, name, None, &[3, 6, 7, 8]));
    // Without userdata, padding and handle.
    let sets = objects(&mut transport, GETSET, name, None, &[13, 14, 16]);
    let names: BTreeSet<String> = sets.iter().map(|set| field(set, 2)).collect();
    lines.extend(sets);
    for set in names {
        let set = String::from_utf8(unhex(set.trim_end_matches("00"))).unwrap();
        let elements = objects(&mut transport, GETSETELEM, name, Some(&set), &[]);
        let mut elements: Vec<String> = elements
            .iter()
            .flat_map(|message| message.split("; ").map(str::to_owned).collect::<Vec<_>>())
            .collect();
        elements.sort();
        lines.extend(elements);
    }
    lines
}

/// Returns the objects of one `kind`, without the attributes `without`: `7: 1=..., 2=...`.
fn objects(
    (transport, family): &mut (Transport, u8),
    kind: u16,
    table: &str,
    set: Option<&str>,
    without: &[u16],
) -> Vec<String> {
    let mut lines = Vec::new();
    transport
        .dump(
            SUBSYSTEM | kind,
            "dumping",
            |writer| {
                writer.header(&[*family, 0, 0, 0]);
                writer.string(1, table);
                if let Some(set) = set {
                    writer.string(2, set);
                }
            },
            Vec::clear,
            &mut lines,
            |lines, message| {
                let all = attributes(&message.payload[4..]).map(Result::unwrap);
                let all: Vec<Attribute<'_>> = all.collect();
                // The kernel dumps the chains of all tables.
                if all[0].string()? == table {
                    let kept = all.iter().filter(|it| !without.contains(&it.kind));
                    let text: Vec<String> = kept.map(|it| line(kind, it)).collect();
                    lines.push(format!("{kind}: {}", text.join(", ")));
                }
                Ok(())
            },
        )
        .unwrap();
    lines
}

/// Returns an attribute as text. Each element of a set is a text of its own, after `; `.
fn line(kind: u16, attribute: &Attribute<'_>) -> String {
    if kind == GETSETELEM && attribute.kind == 3 {
        let elements = attribute
            .nested()
            .map(|element| hex(element.unwrap().value));
        return format!("3=; {}", elements.collect::<Vec<_>>().join("; "));
    }
    format!("{}={}", attribute.kind, hex(attribute.value))
}

/// Returns the value of attribute `kind` in a line of [`objects`].
fn field(line: &str, kind: u16) -> String {
    let field = line.split(", ").find_map(|field| {
        let field = field.rsplit(": ").next().unwrap();
        field.strip_prefix(&format!("{kind}="))
    });
    field.unwrap().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
