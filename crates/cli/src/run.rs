//! `markbase run`: one prompt, one answer.

use std::io::{IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use chat::{
    ChatOptions, ChatTemplate, ControlText, Map, Message, SamplingDefaults, StopIds, StopStrings, TextStream, Tokenizer,
};
use clap::Args;
use engine::{EngineOptions, Finish, Generation};
use plan::Sampling;
use serde_json::json;

use crate::backends::BackendArguments;
use crate::error::Error;
use crate::load::{ModelArguments, Opened};

#[derive(Args)]
pub struct Arguments {
    /// What to say to the model; read from standard input when left out.
    #[arg(value_name = "PROMPT")]
    text: Option<String>,
    /// The same, as an option.
    #[arg(long, value_name = "TEXT", conflicts_with = "text")]
    prompt: Option<String>,
    /// Instructions that stand before the conversation.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Take the prompt as it is, without the model's chat template; control tokens in it count.
    #[arg(long)]
    raw: bool,
    /// The most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    max_tokens: usize,
    /// 0 always takes the likeliest token [default: the model's].
    #[arg(long, value_name = "T", value_parser = temperature)]
    temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 among all [default: the model's].
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Choose among the likeliest tokens that together have this probability [default: the model's].
    #[arg(long, value_name = "P", value_parser = probability)]
    top_p: Option<f32>,
    /// The same seed gives the same answer [default: a new one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Print one JSON object instead of streaming text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    backend: BackendArguments,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "wanted a whole number above 0".into())
}

fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "wanted a number of 0 or more".into())
}

fn probability(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "wanted a number above 0 and at most 1".into())
}

/// The text side of a model folder.
struct Texts {
    tokenizer: Arc<Tokenizer>,
    tokenizer_config: Map,
    stop: StopIds,
    defaults: SamplingDefaults,
}

impl Texts {
    fn read(opened: &Opened, arguments: &Arguments) -> Result<Texts, Error> {
        let checkpoint = &opened.checkpoint;
        let name =
            arguments.model.model.as_ref().map_or(checkpoint.name().to_owned(), |path| path.display().to_string());
        let Some(tokenizer) = checkpoint.file("tokenizer.json")? else {
            return Err(Error::Argument(format!(
                "{name}: no tokenizer.json in it, so text cannot be read or written; copy it from the original model"
            )));
        };
        let tokenizer_config = checkpoint.json("tokenizer_config.json")?.unwrap_or_default();
        let generation = checkpoint.json("generation_config.json")?;
        let tokenizer = Tokenizer::new(&tokenizer, &tokenizer_config)?;
        Ok(Texts {
            stop: StopIds::read(checkpoint.config(), generation.as_ref(), &tokenizer)?,
            defaults: SamplingDefaults::read(generation.as_ref())?,
            tokenizer: Arc::new(tokenizer),
            tokenizer_config,
        })
    }

    fn prompt(&self, opened: &Opened, arguments: &Arguments, text: String) -> Result<Vec<u32>, Error> {
        if arguments.raw {
            return Ok(self.tokenizer.encode_raw(&text)?);
        }
        let source = opened.checkpoint.file("chat_template.jinja")?;
        let source = match source.map(String::from_utf8).transpose() {
            Ok(source) => source,
            Err(_) => return Err(Error::Argument("chat_template.jinja: not UTF-8 text".into())),
        };
        let template = ChatTemplate::new(source.as_deref(), &self.tokenizer_config)?;
        let mut messages: Vec<Message> = vec![];
        messages.extend(arguments.system.as_deref().map(|text| Message::text("system", text)));
        messages.push(Message::text("user", text));
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        Ok(template.prompt(&self.tokenizer, &messages, &options)?.ids)
    }

    fn sampling(&self, arguments: &Arguments) -> Sampling {
        let is_greedy = self.defaults.do_sample == Some(false);
        let default_temperature = if is_greedy { 0.0 } else { self.defaults.temperature.unwrap_or(1.0) };
        Sampling {
            temperature: arguments.temperature.unwrap_or(default_temperature),
            top_k: arguments.top_k.or(self.defaults.top_k).unwrap_or(0),
            top_p: arguments.top_p.or(self.defaults.top_p).unwrap_or(1.0),
            seed: arguments.seed.unwrap_or_else(random_seed),
        }
    }
}

/// The number as it was typed: 0.95, not the f64 next to the f32.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// A seed that a person can type again.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}

/// A quarter million tokens of long words.
const LONGEST_TEXT: u64 = 4 << 20;

fn text_of(arguments: &Arguments) -> Result<String, Error> {
    if let Some(text) = arguments.text.as_ref().or(arguments.prompt.as_ref()) {
        return Ok(text.clone());
    }
    if std::io::stdin().is_terminal() {
        return Err(Error::Argument("no prompt: give it as an argument, `markbase run \"...\"`, or pipe it in".into()));
    }
    let mut text = String::new();
    let read = std::io::stdin().take(LONGEST_TEXT + 1).read_to_string(&mut text);
    let read = read.map_err(|error| Error::Argument(format!("standard input: {error}")))?;
    if read as u64 > LONGEST_TEXT {
        return Err(Error::Argument(format!("standard input: more than {LONGEST_TEXT} bytes, longer than any prompt")));
    }
    Ok(text)
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let text = text_of(&arguments)?;
    if text.trim().is_empty() && !arguments.raw {
        return Err(Error::Argument(
            "the prompt is empty: say something, `markbase run \"...\"`, or pipe it in".into(),
        ));
    }
    let started = Instant::now();
    let opened = arguments.model.open()?;
    let texts = Texts::read(&opened, &arguments)?;
    let prompt = texts.prompt(&opened, &arguments, text)?;
    let sampling = texts.sampling(&arguments);

    let most = opened.model.info.context;
    if prompt.len() >= most {
        let sentence = format!("the prompt has {} tokens, and the model was made for {most} positions", prompt.len());
        return Err(Error::Argument(sentence));
    }
    let options = EngineOptions {
        context: prompt.len().saturating_add(arguments.max_tokens).min(most),
        sequences: 1,
        max_rows: 512.min(prompt.len()),
        max_wanted: 1,
        keep: vec![],
        watch: false,
    };
    let (mut engine, _) = opened.engine(&arguments.backend, options)?;
    let load_time = started.elapsed();

    let mut stream = TextStream::new(texts.tokenizer.clone(), ControlText::Hide);
    let mut stops = StopStrings::new(&arguments.stop)?;
    let mut out = std::io::stdout().lock();
    let (mut answer, mut ids) = (String::new(), vec![]);
    let mut failed = None;
    let mut stopped = false;
    let mut show = |piece: &str, answer: &mut String| -> Result<(), std::io::Error> {
        answer.push_str(piece);
        if arguments.json {
            return Ok(());
        }
        out.write_all(piece.as_bytes())?;
        out.flush()
    };
    let mut sequence = engine.sequence();
    let generation = Generation { prompt: &prompt, max_tokens: arguments.max_tokens, sampling, stop: texts.stop.ids() };
    let generated = engine.generate(&mut sequence, &generation, |token| {
        ids.push(token);
        let watched = stops.push(&stream.push(token));
        stopped = watched.stopped.is_some();
        if let Err(error) = show(&watched.text, &mut answer) {
            failed = Some(error);
            return ControlFlow::Break(());
        }
        if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if !stopped {
        let watched = stops.push(&stream.finish());
        show(&watched.text, &mut answer)?;
        if watched.stopped.is_none() {
            show(&stops.finish(), &mut answer)?;
        }
    }
    if !arguments.json {
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let per_second = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let (prompt_s, decode_s) = (generated.prompt_time.as_secs_f64(), generated.decode_time.as_secs_f64());
    let result = json!({
        "text": answer,
        "finish_reason": match generated.finish { Finish::Stop => "stop", Finish::Length => "length" },
        "usage": {
            "prompt_tokens": prompt.len(),
            "completion_tokens": generated.tokens,
            "total_tokens": prompt.len() + generated.tokens,
        },
        "timings": {
            "load_ms": load_time.as_secs_f64() * 1e3,
            "prompt_ms": prompt_s * 1e3,
            "decode_ms": decode_s * 1e3,
            "prompt_tokens_per_second": per_second(prompt.len(), prompt_s),
            "decode_tokens_per_second": per_second(generated.tokens.saturating_sub(1), decode_s),
        },
        "model": opened.checkpoint.name(),
        "backend": engine.backend_name(),
        "sampling": {
            "temperature": decimal(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": decimal(sampling.top_p),
            "seed": sampling.seed,
        },
        "token_ids": ids,
    });
    writeln!(out, "{result:#}")?;
    Ok(ExitCode::SUCCESS)
}
