//! Drives the unmodified RocketMQ client for Rust: JSON lines in, JSON lines out.
//!
//! `e2e/clients/drivers.py` has the commands. They run beside each other; what the client's own
//! code panics about is the answer of its command.
//!
//! This client has no push consumer, and its simple consumer cannot change an invisible duration.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};

type Answer = Result<Value, String>;

/// A simple consumer, what it subscribes to, and what it has received and not yet acknowledged.
struct Reader {
    consumer: SimpleConsumer,
    topic: String,
    filter: FilterExpression,
    received: Mutex<HashMap<u64, Arc<MessageView>>>,
}

#[derive(Default)]
struct Clients {
    producers: HashMap<String, Arc<Producer>>,
    readers: HashMap<String, Arc<Reader>>,
    handles: u64,
}

type Shared = Arc<Mutex<Clients>>;

fn text<'a>(asked: &'a Value, name: &str) -> &'a str {
    asked[name].as_str().unwrap_or("")
}

fn seconds(asked: &Value, name: &str) -> Duration {
    Duration::from_secs_f64(asked[name].as_f64().unwrap_or(0.0))
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options(asked: &Value) -> ClientOption {
    let addresses: Vec<&str> = asked["endpoints"]
        .as_array()
        .map(|all| all.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut option = ClientOption::default();
    option.set_access_url(addresses.join(","));
    option.set_enable_tls(asked["tls"].as_bool().unwrap_or(false));
    option
}

async fn start_producer(clients: Shared, asked: &Value) -> Answer {
    let mut option = ProducerOption::default();
    option.set_topics(vec![text(asked, "topic")]);
    let mut producer = if asked["transaction"].as_bool().unwrap_or(false) {
        let checker = Box::new(|_: String, half: MessageView| {
            if half.body().starts_with(b"no") {
                TransactionResolution::ROLLBACK
            } else {
                TransactionResolution::COMMIT
            }
        });
        Producer::new_transaction_producer(option, options(asked), checker)
    } else {
        Producer::new(option, options(asked))
    }
    .map_err(failed)?;
    producer.start().await.map_err(failed)?;
    let name = text(asked, "name").to_string();
    clients.lock().unwrap().producers.insert(name, Arc::new(producer));
    Ok(json!({}))
}

fn body(asked: &Value) -> Vec<u8> {
    let words = text(asked, "text").as_bytes();
    let size = asked["size"].as_u64().map_or(words.len(), |size| size as usize);
    words.iter().cycle().take(size).copied().collect()
}

async fn send(clients: Shared, asked: &Value) -> Answer {
    let producer = clients.lock().unwrap().producers.get(text(asked, "producer")).cloned();
    let producer = producer.ok_or("no such producer")?;
    let mut message =
        MessageBuilder::builder().set_topic(text(asked, "topic")).set_body(body(asked));
    if let Some(tag) = asked["tag"].as_str() {
        message = message.set_tag(tag);
    }
    if let Some(keys) = asked["keys"].as_array() {
        message = message.set_keys(keys.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    }
    if let Some(pairs) = asked["properties"].as_object() {
        let pairs = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or("")));
        message = message.set_properties(pairs.collect::<HashMap<_, _>>());
    }
    if let Some(group) = asked["message_group"].as_str() {
        message = message.set_message_group(group);
    }
    if let Some(at_ms) = asked["deliver_at_ms"].as_i64() {
        message = message.set_delivery_timestamp(at_ms / 1000);
    }
    if asked["transaction"].as_bool().unwrap_or(false) {
        let message = message.enable_transaction().build().map_err(failed)?;
        let transaction = producer.send_transaction_message(message).await.map_err(failed)?;
        let ended = match text(asked, "end") {
            "commit" => transaction.commit().await,
            "rollback" => transaction.rollback().await,
            _ => Ok(()),
        };
        // The message is sent: where its end failed, its checker decides.
        return Ok(ended.map_or_else(|error| json!({"end_error": failed(error)}), |()| json!({})));
    }
    let receipt = producer.send(message.build().map_err(failed)?).await.map_err(failed)?;
    Ok(json!({"message_id": receipt.message_id()}))
}

async fn start_reader(clients: Shared, asked: &Value) -> Answer {
    let topic = text(asked, "topic").to_string();
    let filter = match asked["sql"].as_str() {
        Some(sql) => FilterExpression::new(FilterType::Sql, sql),
        None => FilterExpression::new(FilterType::Tag, asked["tag"].as_str().unwrap_or("*")),
    };
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(text(asked, "group"));
    option.set_topics(vec![topic.as_str()]);
    let mut client = options(asked);
    client.set_long_polling_timeout(seconds(asked, "await_s"));
    let mut consumer = SimpleConsumer::new(option, client).map_err(failed)?;
    consumer.start().await.map_err(failed)?;
    let reader = Reader { consumer, topic, filter, received: Mutex::default() };
    clients.lock().unwrap().readers.insert(text(asked, "name").to_string(), Arc::new(reader));
    Ok(json!({}))
}

fn reader(clients: &Shared, asked: &Value) -> Result<Arc<Reader>, String> {
    let found = clients.lock().unwrap().readers.get(text(asked, "consumer")).cloned();
    found.ok_or_else(|| "no such consumer".to_string())
}

fn described(message: &MessageView, handle: u64) -> Value {
    let body = message.body();
    json!({
        "handle": handle,
        "text": String::from_utf8_lossy(&body[..body.len().min(64)]),
        "size": body.len(),
        "sha256": format!("{:x}", Sha256::digest(body)),
        "tag": message.tag(),
        "keys": message.keys(),
        "properties": message.properties(),
        "attempt": message.delivery_attempt(),
    })
}

async fn receive(clients: Shared, asked: &Value) -> Answer {
    let reader = reader(&clients, asked)?;
    let most = asked["count"].as_i64().unwrap_or(1) as i32;
    let found = reader
        .consumer
        .receive_with(&reader.topic, &reader.filter, most, seconds(asked, "invisible_s"))
        .await
        .map_err(failed)?;
    let mut messages = Vec::new();
    for message in found {
        let handle = {
            let mut clients = clients.lock().unwrap();
            clients.handles += 1;
            clients.handles
        };
        messages.push(described(&message, handle));
        reader.received.lock().unwrap().insert(handle, Arc::new(message));
    }
    Ok(json!({"messages": messages}))
}

/// A message view that many tasks may acknowledge; the client wants one of its own traits.
struct Held(Arc<MessageView>);

impl rocketmq::model::message::AckMessageEntry for Held {
    fn topic(&self) -> String {
        rocketmq::model::message::AckMessageEntry::topic(&*self.0)
    }
    fn message_id(&self) -> String {
        rocketmq::model::message::AckMessageEntry::message_id(&*self.0)
    }
    fn receipt_handle(&self) -> String {
        self.0.receipt_handle()
    }
    fn endpoints(&self) -> &rocketmq::model::common::Endpoints {
        self.0.endpoints()
    }
}

async fn ack(clients: Shared, asked: &Value) -> Answer {
    let reader = reader(&clients, asked)?;
    let handle = asked["handle"].as_u64().unwrap_or(0);
    let message = reader.received.lock().unwrap().get(&handle).cloned();
    let message = message.ok_or("no such message")?;
    reader.consumer.ack(&Held(message)).await.map_err(failed)?;
    Ok(json!({}))
}

async fn stop(clients: Shared, asked: &Value) -> Answer {
    let name = text(asked, "name");
    let (producer, reader) = {
        let mut clients = clients.lock().unwrap();
        (clients.producers.remove(name), clients.readers.remove(name))
    };
    if let Some(producer) = producer.and_then(Arc::into_inner) {
        producer.shutdown().await.map_err(failed)?;
    }
    if let Some(reader) = reader.and_then(Arc::into_inner) {
        reader.consumer.shutdown().await.map_err(failed)?;
    }
    Ok(json!({}))
}

async fn answer(clients: Shared, asked: Value) -> Answer {
    match text(&asked, "do") {
        "producer" => start_producer(clients, &asked).await,
        "send" => send(clients, &asked).await,
        "simple" => start_reader(clients, &asked).await,
        "receive" => receive(clients, &asked).await,
        "ack" => ack(clients, &asked).await,
        "stop" => stop(clients, &asked).await,
        other => Err(format!("the Rust client has nothing for {other:?}")),
    }
}

#[tokio::main]
async fn main() {
    let clients = Shared::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let asked: Value = serde_json::from_str(&line).expect("a JSON line");
        let clients = clients.clone();
        tokio::spawn(async move {
            let id = asked["id"].clone();
            let mut told = match tokio::spawn(answer(clients, asked)).await {
                Ok(Ok(told)) => told,
                Ok(Err(error)) => json!({"error": error}),
                Err(panic) => json!({"error": format!("the client panicked: {panic}")}),
            };
            told["id"] = id;
            let mut out = std::io::stdout().lock();
            writeln!(out, "{told}").and_then(|()| out.flush()).expect("somebody reads");
        });
    }
    std::process::exit(0); // the clients' own tasks do not end
}
