//! Parses and prints recordings of `record.sh`.

use ipvs_netlink::sys::IPVS_CMD_GET_INFO;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToKernel,
    FromKernel,
}

/// A command line and its messages, which begin with the generic-netlink header.
pub(crate) struct Exchange {
    pub(crate) command: &'static str,
    pub(crate) messages: Vec<(Direction, Vec<u8>)>,
}

impl Exchange {
    pub(crate) fn all(&self, direction: Direction) -> impl Iterator<Item = &[u8]> {
        let matching = self.messages.iter().filter(move |(d, _)| *d == direction);
        matching.map(|(_, bytes)| &bytes[..])
    }

    /// Returns the only request besides `IPVS_CMD_GET_INFO`, which every `ipvsadm` sends first.
    pub(crate) fn request(&self) -> &[u8] {
        let mut requests = self
            .all(Direction::ToKernel)
            .filter(|bytes| bytes[0] != IPVS_CMD_GET_INFO);
        let request = requests.next().expect(self.command);
        assert_eq!(requests.next(), None, "{}", self.command);
        request
    }
}

/// Parses the exchanges of a recording, in order.
pub(crate) fn recorded(text: &'static str) -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix('#') {
            if let Some(command) = comment.strip_prefix(" ipvsadm ") {
                let messages = Vec::new();
                exchanges.push(Exchange { command, messages });
            }
            continue;
        }
        let messages = &mut exchanges.last_mut().unwrap().messages;
        let (sign, hex) = line.split_at(2);
        match sign {
            "> " => messages.push((Direction::ToKernel, Vec::new())),
            "< " => messages.push((Direction::FromKernel, Vec::new())),
            _ => assert_eq!(sign, "  "),
        }
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
        let bytes = digits.chunks(2).map(|pair| {
            let pair = str::from_utf8(pair).unwrap();
            u8::from_str_radix(pair, 16).unwrap()
        });
        messages.last_mut().unwrap().1.extend(bytes);
    }
    exchanges
}

/// Formats bytes as in the recordings, for assertion messages.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let words = bytes.chunks(4).map(|word| {
        let digits = word.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    });
    words.collect::<Vec<_>>().join(" ")
}
