//! Requests that the data types cannot express.

use ipvs_netlink::message::{write_destination, write_header, write_service_key};
use ipvs_netlink::sys::{
    IPVS_CMD_ATTR_DEST, IPVS_CMD_ATTR_SERVICE, IPVS_CMD_ATTR_TIMEOUT_TCP, IPVS_CMD_NEW_DEST,
    IPVS_CMD_NEW_SERVICE, IPVS_CMD_SET_CONFIG, IPVS_DEST_ATTR_ADDR_FAMILY, IPVS_GENL_VERSION,
    IPVS_SVC_ATTR_AF, IPVS_SVC_ATTR_PORT, IPVS_SVC_ATTR_PROTOCOL,
};
use ipvs_netlink::{Errno, Result};
use netlink::attr::Writer;

use crate::{client, errno, server, service, tcp};

/// A defect, a body with this defect and the expected errno.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Writer<'_>), Errno);

/// Sends `command` with the attributes that `body` writes.
fn send(command: u8, body: impl FnOnce(&mut Writer<'_>)) -> Result<()> {
    let mut client = client();
    let family = client.family();
    let doing = "sending a malformed request";
    let transport = client.transport();
    transport.request(family, 0, doing, |writer| {
        write_header(writer, command, IPVS_GENL_VERSION);
        body(writer);
    })?;
    Ok(())
}

#[test]
fn malformed_services_are_rejected() {
    lab::test(|| {
        let key = tcp("10.9.0.1:80");
        let cases: [Case<'_>; 5] = [
            ("no service", &|_| {}, Errno::INVAL),
            (
                "an empty service",
                &|w| w.nested(IPVS_CMD_ATTR_SERVICE, |_| {}),
                Errno::INVAL,
            ),
            (
                "no address",
                &|w| {
                    w.nested(IPVS_CMD_ATTR_SERVICE, |inner| {
                        inner.u16(IPVS_SVC_ATTR_AF, 2);
                        inner.u16(IPVS_SVC_ATTR_PROTOCOL, 6);
                        inner.u16_be(IPVS_SVC_ATTR_PORT, 80);
                    });
                },
                Errno::INVAL,
            ),
            (
                "an unsupported family",
                &|w| {
                    w.nested(IPVS_CMD_ATTR_SERVICE, |inner| {
                        write_service_key(inner, &key);
                        inner.u16(IPVS_SVC_ATTR_AF, 1);
                    });
                },
                Errno::AFNOSUPPORT,
            ),
            (
                "a key without other fields",
                &|w| {
                    w.nested(IPVS_CMD_ATTR_SERVICE, |inner| {
                        write_service_key(inner, &key)
                    })
                },
                Errno::INVAL,
            ),
        ];
        for (what, body, expected) in cases {
            assert_eq!(
                errno(send(IPVS_CMD_NEW_SERVICE, body)),
                Some(expected),
                "{what}"
            );
        }
    });
}

#[test]
fn malformed_destinations_are_rejected() {
    lab::test(|| {
        let key = tcp("10.9.0.1:80");
        client().add_service(&service(key, "rr")).unwrap();
        let with = |destination: fn(&mut Writer<'_>)| {
            errno(send(IPVS_CMD_NEW_DEST, |writer| {
                writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| {
                    write_service_key(inner, &key)
                });
                destination(writer);
            }))
        };
        assert_eq!(with(|_| {}), Some(Errno::INVAL));
        assert_eq!(
            with(|w| w.nested(IPVS_CMD_ATTR_DEST, |_| {})),
            Some(Errno::INVAL)
        );
        let unsupported_family = |writer: &mut Writer<'_>| {
            writer.nested(IPVS_CMD_ATTR_DEST, |inner| {
                write_destination(inner, &server("10.9.1.1:80", 1));
                inner.u16(IPVS_DEST_ATTR_ADDR_FAMILY, 1);
            });
        };
        assert_eq!(with(unsupported_family), Some(Errno::AFNOSUPPORT));
    });
}

/// Generic netlink checks top-level attributes before IPVS does, so the errno is not `EINVAL`.
#[test]
fn a_service_shorter_than_an_attribute_header_is_out_of_range() {
    lab::test(|| {
        let answer = send(IPVS_CMD_NEW_SERVICE, |w| {
            w.bytes(IPVS_CMD_ATTR_SERVICE, &[0, 0])
        });
        assert_eq!(errno(answer), Some(Errno::RANGE));
    });
}

/// Generic netlink's check of top-level attributes sends a text. IPVS itself never does.
#[test]
fn an_error_contains_the_kernels_text() {
    lab::test(|| {
        let error = send(IPVS_CMD_SET_CONFIG, |writer| {
            writer.u16(IPVS_CMD_ATTR_TIMEOUT_TCP, 1)
        });
        let error = error.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::RANGE));
        let text = error.to_string();
        assert!(
            text.contains("Attribute failed policy validation"),
            "{text}"
        );
    });
}
