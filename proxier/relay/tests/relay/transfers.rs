//! Large transfers, and receivers that do not read.

use std::sync::LazyLock;

use super::*;

/// The bytes of a transfer: enough for every way by which the relay moves bytes.
const LENGTH: usize = 12 << 20;

/// The bytes of all transfers. Neighbouring blocks of a power of two differ.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |place: usize| ((place * 7) >> 3).to_le_bytes()[0] ^ (place >> 16).to_le_bytes()[0];
    (0..LENGTH).map(byte).collect()
});

/// Starts an endpoint that sends [`LENGTH`] bytes to each client, some of them in small pieces, and then ends.
fn source() -> SocketAddr {
    serve(|mut stream| {
        let (large, rest) = BYTES.split_at(LENGTH / 2);
        let (small, last) = rest.split_at(100_000);
        // A client that leaves ends the transfer.
        let _ = stream.write_all(large);
        for piece in small.chunks(1_000) {
            let _ = stream.write_all(piece);
        }
        let _ = stream.write_all(last);
    })
}

/// Connects with a receive buffer of at most `buffer` bytes, so that little waits in the kernel.
fn connect_with(buffer: usize, address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(buffer).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads a transfer in pieces of at most `piece` bytes, and pauses 10 times.
fn receive(stream: &mut TcpStream, piece: usize) {
    let (mut buffer, mut place) = (vec![0; piece], 0);
    loop {
        let read = stream.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        let is_right = buffer[..read] == BYTES[place..place + read];
        assert!(is_right, "wrong bytes after {place}");
        let tenths = |place: usize| place * 10 / LENGTH;
        if tenths(place) < tenths(place + read) {
            std::thread::sleep(Duration::from_millis(20));
        }
        place += read;
    }
    assert_eq!(place, LENGTH);
}

/// Starts a relay in whose memory few bytes may wait.
fn frugal_relay(workers: usize) -> Relay {
    Relay::start(RelayLimits {
        workers,
        held: 100_000,
        ..RelayLimits::default()
    })
    .unwrap()
}

/// Some readers are fast, some slow, and more of them than kernel pipes.
#[test]
fn transfers_are_complete_whatever_their_readers() {
    let pool = pool("rr", None);
    add(&pool, source());
    for (mut relay, count) in [(relay(), 6), (relay_with(16), 2), (frugal_relay(1), 20)] {
        let (address, _listening) = open(&mut relay, &pool);
        let readers = (0..count).map(|number| {
            let (buffer, piece) =
                [(1 << 20, 1 << 20), (4_096, 1 << 16), (1 << 16, 5_000)][number % 3];
            std::thread::spawn(move || receive(&mut connect_with(buffer, address), piece))
        });
        for reader in readers.collect::<Vec<_>>() {
            reader.join().unwrap();
        }
        relay.stop(PATIENCE);
    }
}

#[test]
fn clients_that_do_not_read_leave_room_for_others() {
    let pool = pool("rr", None);
    add(&pool, source());
    let mut relay = frugal_relay(1);
    let (address, _listening) = open(&mut relay, &pool);
    let idle: Vec<TcpStream> = (0..40).map(|_| connect_with(4_096, address)).collect();
    eventually(|| relay.statistics().connected.get() == 40);
    receive(&mut connect_with(1 << 20, address), 1 << 20);
    drop(idle);
}
