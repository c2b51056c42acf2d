#include <chrono>
#include <exception>

#include "apps/command.h"
#include "apps/place.h"
#include "based/core/files.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/generate/batch.h"
#include "based/generate/memory.h"
#include "based/generate/text_model.h"
#include "based/models/limits.h"

namespace based::apps {
namespace {

struct Options {
  std::string model, prompt, prompts, out, state, save_state, dtype, device = "cpu";
  int64_t max_tokens = 128, slots = 0, cache_tokens = 0;
  SamplingOptions sampling;
  std::vector<std::string> stops;
  bool stream = false, json = false, resume = false, plain_steps = false, invariant = false, logprobs = false;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double rate(int64_t count, double seconds) { return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0; }

void check(const Options& options) {
  const auto refuse = [](bool wrong, const char* what) {
    if (wrong) throw UsageError(what);
  };
  check_sampling_options(options.sampling);
  const bool one = !options.prompt.empty() || !options.state.empty(), many = !options.prompts.empty();
  refuse(!one && !many, "generate needs --prompt TEXT, --state FILE or --prompts FILE");
  refuse(one && many, "--prompts goes without --prompt and --state");
  refuse(!many && (options.slots > 0 || !options.out.empty() || options.resume), "--slots, --out and --resume go with --prompts");
  refuse(many && (options.stream || !options.save_state.empty()), "--prompts goes without --stream and --save-state");
  refuse(options.resume && options.out.empty(), "--resume needs the --out of the run that it goes on with");
}

EngineOptions engine_options(const Options& options, int64_t slots, int64_t cache_tokens) {
  EngineOptions engine;
  engine.slots = slots;
  engine.cache_tokens = options.cache_tokens > 0 ? options.cache_tokens : cache_tokens;
  engine.decode.steps = options.plain_steps ? Steps::plain : Steps::fused;
  engine.decode.invariant = options.invariant;
  engine.decode.log_probabilities = options.logprobs;
  return engine;
}

PromptDefaults defaults_of(const Options& options) {
  SequenceOptions sequence;
  sequence.sampling = options.sampling;
  sequence.max_tokens = options.max_tokens;
  return {sequence, options.stops};
}

// What decides a run's results, for --resume.
Json run_of(const Options& options, const std::string& model_hash) {
  const SamplingOptions& sampling = options.sampling;
  return {{"model", model_hash},
          {"dtype", options.dtype},
          {"max_tokens", options.max_tokens},
          {"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"seed", sampling.seed},
          {"stop", options.stops},
          {"logprobs", options.logprobs}};
}

void run_many(const Options& options, const Place& place) {
  const ModelFiles stored = read_model_files(options.model);
  const PromptsFile prompts(options.prompts);
  const PromptDefaults defaults = defaults_of(options);
  const int64_t slots = std::min(options.slots > 0 ? options.slots : place.device.is_cuda() ? 128 : 8, prompts.size());
  const int64_t longest = grows(stored.config) ? prompts.longest(*make_tokenizer(options.model), defaults) : 0;
  EngineOptions engine_of = engine_options(options, slots, slots * longest);
  engine_of.ahead = place.device.is_cuda();  // a CPU has nothing to do meanwhile
  engine_of.patience = place.device.is_cuda() ? 4 : 0;
  require_memory({stored.config, place.dtype.value_or(stored.dtype), place.device}, engine_of, "--slots");
  const TextModel loaded = load_text_model(options.model, place.dtype, place.device);
  Engine engine(*loaded.model, engine_of);
  const BatchOutput output{options.out, options.resume, run_of(options, loaded.hash), print_line};
  const BatchReport report = generate_batch(engine, *loaded.tokenizer, prompts, defaults, output);
  const int64_t done = report.kept + report.finished + report.failed;
  const double tokens_per_second = rate(report.tokens, report.seconds);
  print_message(grouped(done) + " of " + grouped(report.prompts) + " prompts" +
                (report.kept > 0 ? " (" + grouped(report.kept) + " of them before)" : "") + ", " + grouped(report.tokens) + " tokens in " +
                format_duration(report.seconds) + ", " + format_number(tokens_per_second, 1) + " tokens/s");
  if (options.json && !options.out.empty())
    print_line(dump_json({{"prompts", report.prompts},
                          {"finished", report.finished},
                          {"failed", report.failed},
                          {"kept", report.kept},
                          {"prompt_tokens", report.prompt_tokens},
                          {"tokens", report.tokens},
                          {"seconds", report.seconds},
                          {"tokens_per_second", tokens_per_second}}));
  if (report.failed > 0) print_message(grouped(report.failed) + " prompts failed; their lines say why");
  if (report.interrupted)
    print_message(options.out.empty() ? "interrupted; what was finished has been printed"
                                      : "interrupted; what is finished is kept in " + options.out +
                                            ".partial, and the same command with --resume does the rest");
  if (report.failed > 0 || report.interrupted) throw Exit{1};
}

struct Generated {
  GeneratedText text;
  double prompt_seconds = 0, seconds = 0;  // up to the first token; from there to the last
};

Generated generate(const Options& options, TextGenerator& generator, TextRequest request) {
  const InterruptScope interrupts;
  const TextGenerator::Piece give = [&](int64_t, const std::string& piece) {
    if (!options.stream) return;
    options.json ? print_line(dump_json({{"text", piece}})) : print_text(piece);
  };
  Generated out;
  auto start = std::chrono::steady_clock::now();
  const int64_t sequence = generator.add(std::move(request));
  bool first = true;
  while (!generator.idle() && !interrupted()) {
    generator.step(give, [&](int64_t, GeneratedText text) { out.text = std::move(text); });
    if (first && (generator.idle() || generator.drawn(sequence) > 0)) {
      first = false;
      out.prompt_seconds = seconds_since(start);
      start = std::chrono::steady_clock::now();
    }
  }
  if (!generator.idle()) out.text = generator.break_off(sequence, give);
  out.seconds = seconds_since(start);
  return out;
}

void report(const Options& options, const Generated& out, int64_t state_bytes) {
  const auto tokens = static_cast<int64_t>(out.text.ids.size());
  const double decode = rate(tokens - 1, out.seconds), prefill = rate(out.text.prompt_tokens, out.prompt_seconds);
  if (options.json) {
    Json json{{"text", out.text.text},
              {"ids", out.text.ids},
              {"prompt_tokens", out.text.prompt_tokens},
              {"finish_reason", out.text.finish_reason},
              {"first_token_seconds", out.prompt_seconds},
              {"tokens_per_second", decode},
              {"state_bytes", state_bytes}};
    if (options.logprobs) json["log_probabilities"] = out.text.log_probabilities;
    print_line(dump_json(json));
  } else {
    print_text((options.stream ? "" : options.prompt + out.text.text) + "\n");
  }
  print_message(grouped(out.text.prompt_tokens) + " tokens of prompt and the first token in " + format_duration(out.prompt_seconds) + " (" +
                format_number(prefill, 1) + " tokens/s), then " + grouped(tokens - 1) + " tokens at " + format_number(decode, 1) +
                " tokens/s; state " + grouped(state_bytes) + " bytes");
}

void run_one(const Options& options, const Place& place) {
  if (!options.save_state.empty()) check_writable(options.save_state);
  const TextModel loaded = load_text_model(options.model, place.dtype, place.device);
  const PromptDefaults defaults = defaults_of(options);
  TextRequest request{encode_ids(*loaded.tokenizer, options.prompt), {}, defaults.options, defaults.stops};
  request.options.keep_state = !options.save_state.empty();
  if (!options.state.empty()) request.state = load_sequence(options.state, *loaded.model, loaded.hash);
  const auto prompt = static_cast<int64_t>(request.ids.size() + (request.state ? request.state->ids.size() : 0));
  const int64_t most = prompt + std::min(options.max_tokens, int64_t{1} << 62);
  require_positions(loaded.model->config(), most - 1, "the prompt and --max-tokens");  // the last token is not read
  // On a GPU a step is recorded where its memory is fixed.
  Engine engine(*loaded.model, engine_options(options, 1, place.device.is_cuda() ? most : 0));
  TextGenerator generator(engine, *loaded.tokenizer);
  const Generated out = generate(options, generator, std::move(request));
  report(options, out, engine.state_bytes());
  if (!options.save_state.empty()) {
    save_sequence(options.save_state, engine.snapshot(0), loaded.hash);
    print_message("state saved in " + options.save_state);
  }
  if (out.text.finish_reason == "not_finite") throw Error("sampling: the model's logits are not finite; its weights may be damaged");
  if (out.text.finish_reason == "interrupted") throw Exit{1};
}

void run(const Options& options) {
  check(options);
  const Place place = parse_place(options.device, options.dtype);
  options.prompts.empty() ? run_one(options, place) : run_many(options, place);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("--model", options->model, "the model's folder, as `based train` leaves it");
  app.add_option("--prompt", options->prompt, "text to continue; after --state: text to add first");
  app.add_option("--prompts", options->prompts,
                 "JSON lines {\"prompt\": \"…\"}, any number of them; a line may also give max_tokens, seed, stop, …");
  app.add_option("--out", options->out, "with --prompts: file for the results; standard output where none is named");
  app.add_flag("--resume", options->resume, "with --prompts: do what an interrupted run into --out has left");
  app.add_option("--slots", options->slots, "with --prompts: sequences that run at once; 0: 8 on the CPU, 128 on a GPU", {0, 1 << 20});
  app.add_option("--cache-tokens", options->cache_tokens,
                 "models whose state grows: tokens that all sequences at once may have; 0: as many as they may need",
                 {0, int64_t{1} << 50});
  app.add_option("--state", options->state, "continue from this state file");
  app.add_option("--save-state", options->save_state, "write the state after the last token here");
  app.add_option("--max-tokens", options->max_tokens, "tokens to generate", {0});
  app.add_option("--temperature", options->sampling.temperature, "0: the most likely token");
  app.add_option("--top-k", options->sampling.top_k, "keep the k most likely tokens; 0: all");
  app.add_option("--top-p", options->sampling.top_p, "keep the most likely tokens up to this probability");
  app.add_option("--min-p", options->sampling.min_p, "keep tokens with this share of the most likely one's probability");
  app.add_option("--repetition-penalty", options->sampling.repetition_penalty, "above 1: repeat less");
  app.add_option("--seed", options->sampling.seed, "the same seed and text give the same tokens");
  app.add_option("--stop", options->stops, "end before this text; may be given several times");
  app.add_option("--dtype", options->dtype, "fp32, bf16 or fp64 (default: as stored)");
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_flag("--logprobs", options->logprobs,
               "also each token's log-probability, without temperature and cuts (with --json or --prompts)");
  app.add_flag("--plain-steps", options->plain_steps, "on a GPU: no recorded steps, no fused kernels");
  app.add_flag("--invariant", options->invariant,
               "a sequence's bits depend on its tokens and the model alone, whatever runs beside it; slower");
  app.add_flag("--stream", options->stream, "print text as it is made");
  app.add_flag("--json", options->json, "for machines; with --stream one line a piece, then the summary");
  app.callback([options] { run(*options); });
}

}  // namespace

const Command command_generate{"generate", "Continue prompts from a recurrent state", setup};

}  // namespace based::apps
