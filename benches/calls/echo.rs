//! The fastest echo server we can write: the floor everything is measured from.
//!
//! `echo` returns its argument `text`; `big` returns a text of `bytes` bytes; `sleep` takes `ms` milliseconds.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    name: &'a str,
    #[serde(borrow)]
    arguments: Arguments<'a>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    bytes: Option<usize>,
    ms: Option<u64>,
}

/// Appends the answer to one message, without a line end. `false`: there is none.
fn answer(message: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(request) = serde_json::from_slice::<Request>(message) else {
        return false;
    };
    let (Some(id), Some(method)) = (request.id, request.method) else {
        return false;
    };
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.get().as_bytes());
    match &*method {
        "tools/call" => result(request.params.map_or("{}", RawValue::get), out),
        "initialize" => out.extend_from_slice(
            br#","result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}}"#,
        ),
        "tools/list" => list(out),
        "ping" => out.extend_from_slice(br#","result":{}}"#),
        _ => out.extend_from_slice(br#","error":{"code":-32601,"message":"Method not found"}}"#),
    }
    true
}

/// How many tools are listed.
pub static TOOLS: AtomicUsize = AtomicUsize::new(3);

/// The three tools, and as many more as are wanted.
fn list(out: &mut Vec<u8>) {
    out.extend_from_slice(br#","result":{"tools":["#);
    for number in 0..TOOLS.load(Ordering::Relaxed) {
        let name = match number {
            0 => "echo".to_owned(),
            1 => "big".to_owned(),
            2 => "sleep".to_owned(),
            _ => format!("tool_{number}"),
        };
        let comma = if number == 0 { "" } else { "," };
        let tool = format!(
            r#"{comma}{{"name":"{name}","description":"What it is for, said in about as many words as people need.","inputSchema":{{"type":"object","properties":{{"text":{{"type":"string","description":"What to say."}},"bytes":{{"type":"integer"}}}}}}}}"#
        );
        out.extend_from_slice(tool.as_bytes());
    }
    out.extend_from_slice(b"]}}");
}

fn result(params: &str, out: &mut Vec<u8>) {
    let call: Call = serde_json::from_str(params).expect("a call");
    out.extend_from_slice(br#","result":{"content":[{"type":"text","text":"#);
    match (call.name, call.arguments) {
        (
            "big",
            Arguments {
                bytes: Some(bytes), ..
            },
        ) => big(bytes, out),
        (
            _,
            Arguments {
                text: Some(text), ..
            },
        ) => out.extend_from_slice(text.get().as_bytes()),
        (_, Arguments { ms, .. }) => {
            std::thread::sleep(Duration::from_millis(ms.unwrap_or_default()));
            out.extend_from_slice(br#""slept""#);
        }
    }
    out.extend_from_slice(b"}]}}");
}

/// A JSON string like the text of a file: lines with a quote each.
fn big(bytes: usize, out: &mut Vec<u8>) {
    const LINE: &[u8] =
        br#"The quick brown fox said \"jump\" and the lazy dog, for once, was faster by far.\n"#;
    out.reserve(bytes + 2);
    out.push(b'"');
    let end = out.len() + bytes;
    while out.len() < end {
        out.extend_from_slice(LINE);
    }
    out.push(b'"');
}

/// One message a line; one write for every burst.
pub fn serve_stdio() {
    let mut input = std::io::stdin().lock();
    let (mut pending, mut out, mut asleep) = (Vec::new(), Vec::new(), Vec::new());
    let mut chunk = vec![0; 1 << 16];
    while let Ok(read) = input.read(&mut chunk)
        && read > 0
    {
        pending.extend_from_slice(&chunk[..read]);
        let mut start = 0;
        while let Some(end) = memchr(&pending[start..]) {
            let line = &pending[start..start + end];
            if is_sleep(line) {
                asleep.extend_from_slice(&pending[start..=start + end]);
            } else if answer(line, &mut out) {
                out.push(b'\n');
            }
            start += end + 1;
        }
        pending.drain(..start);
        if !asleep.is_empty() {
            sleep_aside(std::mem::take(&mut asleep));
        }
        if !write_stdout(&out) {
            return;
        }
        out.clear();
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

fn is_sleep(line: &[u8]) -> bool {
    line.len() < 1024 && String::from_utf8_lossy(line).contains(r#""name":"sleep""#)
}

/// Answers later what came with one read, all of which sleeps for as long: a thread for each call
/// would cost more than what is measured.
fn sleep_aside(lines: Vec<u8>) {
    std::thread::spawn(move || {
        let mut out = Vec::new();
        let mut rest = &lines[..];
        while let Some(end) = memchr(rest) {
            let mut text = Vec::new();
            // The first sleeps for all.
            let line = match out.is_empty() {
                true => rest[..end].to_vec(),
                false => without_sleep(&rest[..end]),
            };
            if answer(&line, &mut text) {
                out.extend_from_slice(&text);
                out.push(b'\n');
            }
            rest = &rest[end + 1..];
        }
        write_stdout(&out);
    });
}

fn without_sleep(line: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(line);
    text.replace(r#""ms":"#, r#""ms":0,"asked":"#).into_bytes()
}

/// Past the line buffer of the standard library, which would search every byte for a line end.
fn write_stdout(mut bytes: &[u8]) -> bool {
    static WHOLE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _whole = WHOLE.lock();
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(_) => return false,
        }
    }
    true
}

/// Streamable HTTP without sessions, a thread a connection; the port is the first line on stdout.
pub fn serve_http() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    println!("{}", listener.local_addr().expect("an address").port());
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || converse(stream));
    }
}

fn converse(stream: TcpStream) {
    stream.set_nodelay(true).expect("an option");
    let mut writer = stream.try_clone().expect("a second handle");
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let (mut out, mut response) = (Vec::new(), Vec::new());
    while let Some(body) = read_request(&mut reader) {
        out.clear();
        response.clear();
        let head = if answer(&body, &mut out) {
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                out.len()
            )
        } else if body.is_empty() {
            "HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n".to_owned()
        } else {
            "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned()
        };
        response.extend_from_slice(head.as_bytes());
        response.extend_from_slice(&out);
        if writer.write_all(&response).is_err() {
            return;
        }
    }
}

pub fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}
