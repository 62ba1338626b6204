//! A client for pages on the loopback device.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

/// Returns the body of `GET path` at a port of 127.0.0.1, whatever the status.
pub(crate) fn get(port: u16, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    // A server answers HTTP/1.0 without chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(body.to_owned())
}
