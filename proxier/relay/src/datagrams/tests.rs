//! Trains of datagrams.

use super::*;

fn socket(address: &str) -> UdpSocket {
    UdpSocket::bind(address.parse().unwrap()).unwrap()
}

/// Returns a socket of the relay, and its address.
fn relay(address: &str) -> (DatagramSocket, SocketAddr) {
    let socket = socket(address);
    let address = socket.local_addr().unwrap();
    (DatagramSocket::new(socket, address), address)
}

/// Returns the lengths of the messages of each train.
fn lengths(batch: &DatagramBatch) -> Vec<Vec<usize>> {
    let of = |train: Train<'_>| train.messages.iter().map(|it| it.length).collect();
    batch.trains().map(of).collect()
}

/// Sends `count` datagrams of `size` bytes and one of `last` bytes as one train. Each has its number in
/// all its bytes.
fn send_train(socket: &UdpSocket, size: u8, count: u8, last: usize) {
    let mut bytes: Vec<u8> = (0..count)
        .flat_map(|number| vec![number; size.into()])
        .collect();
    bytes.extend(vec![count; last]);
    let size = u16::from(size);
    let control = [ControlMessage::UdpGsoSegments(&size)];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&bytes)],
        &control,
        MsgFlags::empty(),
        None,
    )
    .unwrap();
}

#[test]
fn a_train_ends_with_a_shorter_datagram_and_before_a_longer_one_or_another_sender() {
    let (receiver, address) = relay("127.0.0.1:0");
    let (one, other) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    for (sender, length) in [
        (&one, 300),
        (&one, 300),
        (&one, 200),
        (&one, 300),
        (&one, 0),
        (&one, 0),
        (&one, 301),
        (&other, 301),
    ] {
        sender.send_to(&vec![b'x'; length], address).unwrap();
    }
    let mut batch = DatagramBatch::new();
    assert_eq!(batch.receive(&receiver).unwrap(), MoreDatagrams::Nothing);
    let expected: [&[usize]; 6] = [&[300, 300, 200], &[300], &[0], &[0], &[301], &[301]];
    assert_eq!(lengths(&batch), expected);
    let senders: Vec<_> = batch.trains().filter_map(|train| train.sender).collect();
    assert_eq!(senders.last(), other.local_addr().ok().as_ref());
    assert_eq!(senders.first(), one.local_addr().ok().as_ref());
}

#[test]
fn a_train_arrives_as_its_datagrams_in_both_families_whatever_their_size() {
    let mut batch = DatagramBatch::new();
    // Two of the last datagrams fill a train.
    for (host, length) in [
        ("[::1]:0", 1_200),
        ("127.0.0.1:0", 1_200),
        ("[::1]:0", 1),
        ("127.0.0.1:0", 30_000),
    ] {
        let (client, endpoint) = (socket(host), socket(host));
        let (relay, address) = relay(host);
        client.connect(address).unwrap();
        for number in 0..4 {
            client.send(&vec![number; length]).unwrap();
        }
        batch.receive(&relay).unwrap();
        for train in batch.trains() {
            assert_eq!(train.sender, client.local_addr().ok());
            train.send(&relay, endpoint.local_addr().ok()).unwrap();
        }
        let mut buffer = vec![0; LONGEST];
        for number in 0..4 {
            assert_eq!(endpoint.recv(&mut buffer).unwrap(), length);
            assert_eq!(buffer[..length], vec![number; length]);
        }
        assert!(endpoint.recv(&mut buffer).is_err());
    }
}

#[test]
fn a_train_is_one_message_and_arrives_as_its_datagrams() {
    const COUNT: u8 = 8;
    let mut batch = DatagramBatch::new();
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let (client, endpoint) = (socket(host), socket(host));
        let (relay, address) = relay(host);
        client.connect(address).unwrap();
        send_train(&client, 100, COUNT, 30);
        client.send(&[b'x'; 100]).unwrap();
        client.send(&[b'x'; 90]).unwrap();
        client.send(&[]).unwrap();
        send_train(&client, 20, 2, 0);
        batch.receive(&relay).unwrap();
        let expected: [&[usize]; 4] = [&[usize::from(COUNT) * 100 + 30], &[100, 90], &[0], &[40]];
        assert_eq!(lengths(&batch), expected);
        for train in batch.trains() {
            train.send(&relay, endpoint.local_addr().ok()).unwrap();
        }
        let mut buffer = vec![0; LONGEST];
        for number in 0..COUNT {
            assert_eq!(endpoint.recv(&mut buffer).unwrap(), 100);
            assert_eq!(buffer[..100], [number; 100]);
        }
        let mut others = std::iter::from_fn(|| endpoint.recv(&mut buffer).ok());
        assert_eq!(
            others.by_ref().collect::<Vec<_>>(),
            [30, 100, 90, 0, 20, 20]
        );
    }
}

#[test]
fn a_turn_ends_after_many_messages_or_when_none_is_left() {
    for is_connected in [false, true] {
        let (sender, receiver) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
        let address = receiver.local_addr().unwrap();
        let peer = sender.local_addr().unwrap();
        sender.connect(address).unwrap();
        let receiver = match is_connected {
            false => DatagramSocket::new(receiver, address),
            true => {
                receiver.connect(peer).unwrap();
                DatagramSocket::connected(receiver, peer)
            }
        };
        let mut batch = DatagramBatch::new();
        for number in 0..=MESSAGES {
            // Datagrams of different sizes are no train.
            sender.send(&vec![b'x'; number % 2]).unwrap();
        }
        for (count, expected) in [
            (MESSAGES, MoreDatagrams::Perhaps),
            (1, MoreDatagrams::Nothing),
            (0, MoreDatagrams::Nothing),
        ] {
            assert_eq!(batch.receive(&receiver).unwrap(), expected);
            assert_eq!(batch.received.len(), count, "{is_connected}");
            assert!(batch.trains().all(|train| train.sender == Some(peer)));
        }
    }
}

/// Any host can send to a socket that is bound and not yet connected, and the kernel keeps what it took.
#[test]
fn datagrams_of_strangers_before_the_connection_do_not_count() {
    let mut batch = DatagramBatch::new();
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let (endpoint, stranger) = (socket(host), socket(host));
        let receiver = socket(host);
        let (address, peer) = (
            receiver.local_addr().unwrap(),
            endpoint.local_addr().unwrap(),
        );
        let forge = || stranger.send_to(b"forged", address).unwrap();
        forge();
        endpoint.send_to(b"answer", address).unwrap();
        forge();
        receiver.connect(peer).unwrap();
        // The kernel drops this one.
        forge();
        let receiver = DatagramSocket::connected(receiver, peer);
        let remaining = batch.receive(&receiver).unwrap();
        assert_eq!(remaining, MoreDatagrams::Nothing);
        let of = |train: Train<'_>| (train.sender, train.first().to_vec());
        let received: Vec<_> = batch.trains().map(of).collect();
        assert_eq!(received, [(Some(peer), b"answer".to_vec())]);
    }
}

#[test]
fn a_frontend_learns_the_hops_of_each_datagram() {
    let mut batch = DatagramBatch::new();
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let (receiver, address) = relay(host);
        // More than once, because the kernel writes into the headers.
        for hops in [64, 3, 17] {
            let sender = socket(host);
            match address {
                SocketAddr::V4(_) => sender.set_ttl(hops).unwrap(),
                SocketAddr::V6(_) => {
                    let sender = socket2::SockRef::from(&sender);
                    sender.set_unicast_hops_v6(hops).unwrap();
                }
            }
            sender.send_to(b"x", address).unwrap();
            batch.receive(&receiver).unwrap();
            let received: Vec<_> = batch.trains().map(|train| train.hops).collect();
            assert_eq!(received, [u8::try_from(hops).ok()]);
        }
    }
}
