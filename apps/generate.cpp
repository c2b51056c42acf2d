#include <algorithm>
#include <charconv>
#include <chrono>

#include "apps/command.h"
#include "apps/place.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/core/profile.h"
#include "based/core/progress.h"
#include "based/generate/batch.h"
#include "based/generate/memory.h"
#include "based/generate/text_model.h"
#include "based/models/finite.h"
#include "based/models/limits.h"

namespace based::apps {
namespace generate_command {

struct Options {
  std::string model, prompts, out, state, save_state, dtype, device = "cpu";
  std::optional<std::string> prompt;
  std::string draft, profile;
  int64_t max_tokens = 128, slots = 0, cache_tokens = 0, draft_tokens = kMostDraftTokens;
  SamplingOptions sampling;
  std::vector<std::string> stops, logit_bias;
  bool stream = false, json = false, resume = false, plain_steps = false, invariant = false, logprobs = false, before_stop = false;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double rate(int64_t count, double seconds) { return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0; }

// "ID:NUMBER"
std::vector<std::pair<int64_t, double>> parse_logit_bias(const std::vector<std::string>& given) {
  std::vector<std::pair<int64_t, double>> biases;
  biases.reserve(given.size());
  for (const std::string& one : given) {
    const char* const end = one.data() + one.size();
    int64_t id = 0;
    double number = 0;
    const auto after_id = std::from_chars(one.data(), end, id);
    const bool is_pair = after_id.ec == std::errc() && after_id.ptr != end && *after_id.ptr == ':';
    const auto after = is_pair ? std::from_chars(after_id.ptr + 1, end, number) : after_id;
    if (!is_pair || after.ec != std::errc() || after.ptr != end)
      throw UsageError("--logit-bias must be ID:NUMBER, for example 50256:-100; got '" + one + "'");
    biases.emplace_back(id, number);
  }
  return biases;
}

bool has_draft_model(const Options& options) { return !options.draft.empty() && options.draft != "ngram" && options.draft != "none"; }

void check(const Options& options) {
  const auto refuse = [](bool wrong, const char* what) {
    if (wrong) throw UsageError(what);
  };
  check_sampling_options(options.sampling);
  const bool one = options.prompt || !options.state.empty(), many = !options.prompts.empty();
  refuse(!one && !many, "generate needs --prompt TEXT, --state FILE or --prompts FILE");
  refuse(one && many, "--prompts goes without --prompt and --state");
  refuse(options.prompt && options.prompt->empty() && options.state.empty(), "--prompt is empty: generation needs at least one token");
  refuse(options.before_stop && options.save_state.empty(), "--save-state-before-stop goes with --save-state FILE");
  refuse(!many && (options.slots > 0 || !options.out.empty() || options.resume), "--slots, --out and --resume go with --prompts");
  refuse(many && (options.stream || !options.save_state.empty()), "--prompts goes without --stream and --save-state");
  refuse(options.resume && options.out.empty(), "--resume needs the --out of the run that it continues");
  if (has_draft_model(options) && !is_folder(options.draft))
    throw Error(options.draft + ": is no folder; --draft must be ngram, none or the folder of a model");
}

DraftOptions draft_options(const Options& options, const Place& place, int64_t slots) {
  DraftOptions drafts;
  drafts.most = options.draft_tokens;
  if (options.draft.empty()) return drafts;
  if (!has_draft_model(options)) {
    if (options.draft == "none") drafts.most = 0;
    drafts.drafter = make_ngram_drafter();
    drafts.by_repetition = true;
    return drafts;
  }
  const TextModel drafter = load_text_model(options.draft, place.dtype, torch::kCPU);
  if (drafter.tokenizer->hash() != make_tokenizer(options.model)->hash())
    throw Error(options.draft + ": its tokenizer is not that of " + options.model + "; a draft model needs the same one");
  drafts.drafter = make_model_drafter(drafter.model, slots);
  return drafts;
}

EngineOptions engine_options(const Options& options, const Place& place, int64_t slots) {
  EngineOptions engine;
  engine.slots = slots;
  // Gains nothing on a CPU. A saved state has not read a token after a stop string.
  engine.ahead = place.device.is_cuda() && options.save_state.empty();
  engine.drafts = draft_options(options, place, slots);
  engine.decode.steps = options.plain_steps ? Steps::plain : Steps::fused;
  engine.decode.invariant = options.invariant;
  engine.decode.log_probabilities = options.logprobs;
  return engine;
}

int64_t product_or_most(int64_t a, int64_t b) { return a > INT64_MAX / b ? INT64_MAX : a * b; }

// Returns the most tokens that the cache of a growing state may hold: --cache-tokens, or as many as fit into memory. Throws Error if
// weights, slots and that cache do not fit.
int64_t most_cache_tokens(const Options& options, const ModelPlace& place, const EngineOptions& engine) {
  EngineOptions with = engine;
  with.cache_tokens = options.cache_tokens;
  const bool one = options.prompts.empty();
  require_memory(place, with, one ? "--cache-tokens " + std::to_string(options.cache_tokens) + ", slots" : "--slots");
  return options.cache_tokens > 0 ? options.cache_tokens : cache_tokens_that_fit(place, engine);
}

// Returns the size of the cache in tokens. max_tokens may be any number, and few sequences become that long. If memory cannot hold the sum
// of all limits, a GPU's cache takes all that is free and a CPU's cache grows with the sequences (0).
int64_t cache_tokens(const Options& options, torch::Device device, int64_t need, int64_t most) {
  if (options.cache_tokens > 0) return options.cache_tokens;
  return need <= most ? need : device.is_cuda() ? most : 0;
}

PromptDefaults defaults_of(const Options& options) {
  SequenceOptions sequence;
  sequence.sampling = options.sampling;
  sequence.max_tokens = options.max_tokens;
  return {sequence, options.stops};
}

// Everything that determines a run's results, to the bit; --resume compares it. It has the values in effect, defaults included, not the
// options as the user wrote them.
Json run_of(const Options& options, const std::string& model_hash, const Engine& engine) {
  const SamplingOptions& sampling = options.sampling;
  const LanguageModel& model = engine.model();
  Json run{{"model", model_hash},
           {"dtype", float_type_name(model.dtype())},
           {"device", model.device().is_cuda() ? "cuda" : "cpu"},
           {"plain_steps", options.plain_steps},
           {"invariant", options.invariant},
           {"slots", engine.slots()},
           {"cache_tokens", options.cache_tokens},
           {"max_tokens", options.max_tokens},
           {"temperature", sampling.temperature},
           {"top_k", sampling.top_k},
           {"top_p", sampling.top_p},
           {"min_p", sampling.min_p},
           {"repetition_penalty", sampling.repetition_penalty},
           {"presence_penalty", sampling.presence_penalty},
           {"frequency_penalty", sampling.frequency_penalty},
           {"logit_bias", sampling.logit_bias},
           {"seed", sampling.seed},
           {"stop", options.stops},
           {"logprobs", options.logprobs}};
  if (!options.draft.empty() && !options.invariant) run["draft"] = options.draft;  // it moves the moments at which prompts are read
  if (!engine.drafts_keep_bits()) run["fixed_rows"] = true;                        // such steps have their own bits
  if (options.invariant) run.erase("slots");  // then the results depend only on the sequence, not on the number of slots
  return run;
}

Json draft_json(const Engine& engine) {
  const DraftCounts counts = engine.draft_counts();
  return {{"keeps_bits", engine.drafts_keep_bits()}, {"steps", counts.steps},
          {"one_row_steps", counts.one_row},         {"drafted_tokens", counts.drafted},
          {"accepted_tokens", counts.accepted},      {"tokens_per_step", counts.tokens_per_step()}};
}

// For the line of figures; empty without --draft.
std::string describe(const Options& options, const DraftCounts& counts) {
  if (options.draft.empty()) return "";
  return "; " + grouped(counts.accepted) + " of " + grouped(counts.drafted) + " drafted tokens accepted, " +
         format_number(counts.tokens_per_step(), 2) + " tokens a step";
}

void report(const Options& options, const BatchReport& report, const Engine& engine) {
  const int64_t failed = report.kept_failed + report.failed, succeeded = report.kept - report.kept_failed + report.finished;
  const double tokens_per_second = rate(report.tokens, report.seconds);
  print_message(grouped(succeeded) + " of " + grouped(report.prompts) + " prompts" +
                (report.kept > 0 ? " (" + grouped(report.kept - report.kept_failed) + " of them before)" : "") + ", " +
                grouped(report.tokens) + " tokens in " + format_duration(report.seconds) + ", " + format_number(tokens_per_second, 1) +
                " tokens/s" + describe(options, engine.draft_counts()));
  if (options.json && !options.out.empty()) {
    Json json{{"prompts", report.prompts}, {"finished", report.finished},           {"failed", failed},
              {"kept", report.kept},       {"prompt_tokens", report.prompt_tokens}, {"tokens", report.tokens},
              {"seconds", report.seconds}, {"tokens_per_second", tokens_per_second}};
    if (!options.draft.empty()) json["draft"] = draft_json(engine);
    print_line(dump_json(json));
  }
  if (failed > 0)
    print_message(grouped(failed) + " prompts failed" +
                  (report.kept_failed > 0 ? " (" + grouped(report.kept_failed) + " of them before)" : "") + "; their lines say why");
  if (report.interrupted)
    print_message(options.out.empty() ? "interrupted; what was finished has been printed"
                                      : "interrupted; what is finished is kept in " + options.out +
                                            ".partial, and the same command with --resume does the rest");
  if (failed > 0 || report.interrupted) throw Exit{1};
}

void run_many(const Options& options, const Place& place) {
  const ModelFiles stored = read_model_files(options.model);
  const PromptsFile prompts(options.prompts);
  const PromptDefaults defaults = defaults_of(options);
  const bool drafts = !options.draft.empty();
  const int64_t usual_slots = !place.device.is_cuda() ? 8 : drafts ? 1 : 128;  // on a GPU a step with drafts reads one sequence
  const int64_t slots = std::min(options.slots > 0 ? options.slots : usual_slots, prompts.size());
  const int64_t longest = grows(stored.config) ? prompts.longest(*make_tokenizer(options.model), defaults) : 1;
  EngineOptions settings = engine_options(options, place, slots);
  settings.max_idle_slot_steps = place.device.is_cuda() ? 4 : 0;
  const ModelPlace model{stored.config, place.dtype.value_or(stored.dtype), place.device, stored.form};
  const int64_t most = most_cache_tokens(options, model, settings);
  settings.cache_tokens = cache_tokens(options, place.device, product_or_most(slots, longest), most);
  const TextModel loaded = load_text_model(options.model, place.dtype, place.device);
  Engine engine(*loaded.model, settings);
  const BatchOutput output{options.out, options.resume, run_of(options, loaded.hash, engine), print_line};
  const BatchReport made = generate_batch(engine, *loaded.tokenizer, prompts, defaults, output);
  report(options, made, engine);
}

struct Generated {
  int64_t sequence = 0;  // the engine's number
  GeneratedText text;
  double prompt_seconds = 0, seconds = 0;  // time to the first token; time from the first token to the last
};

// The progress line while a long prompt is read. It is removed at the first token.
class Reading {
 public:
  Reading(const Engine& engine, const std::string& label, int64_t tokens) : engine_(engine), tokens_(tokens) {
    if (tokens > default_prefill_tokens(engine.model().device())) progress_.emplace(label, tokens);
  }
  void update() {
    if (progress_) progress_->update(engine_.tokens_read() - before_);
  }
  void end() {
    if (progress_) progress_->update(tokens_);
    progress_.reset();
  }

 private:
  const Engine& engine_;
  int64_t tokens_, before_ = engine_.tokens_read();
  std::optional<Progress> progress_;
};

// The number of a request's tokens to prefill: all unread ones except the last, which the first decoding step reads.
int64_t prefill_tokens(const TextRequest& request) {
  const auto added = static_cast<int64_t>(request.ids.size());
  if (!request.state) return added - 1;
  return added + static_cast<int64_t>(request.state->ids.size()) - 1 - request.state->seen();
}

Generated generate(const Options& options, const Engine& engine, TextGenerator& generator, TextRequest request) {
  const InterruptScope interrupts;
  Reading reading(engine, "prompt tokens", prefill_tokens(request));
  const TextGenerator::Piece give = [&](int64_t, const std::string& piece) {
    reading.end();
    if (!options.stream) return;
    options.json ? print_line(dump_json({{"text", piece}})) : print_text(piece);
  };
  Generated out;
  auto start = std::chrono::steady_clock::now();
  const int64_t sequence = out.sequence = generator.add(std::move(request));
  bool first = true;
  while (!generator.idle() && !interrupted()) {
    generator.step(give, [&](int64_t, GeneratedText text) { out.text = std::move(text); });
    if (!first) continue;
    reading.update();
    if (!generator.idle() && generator.drawn(sequence) == 0) continue;
    first = false;
    reading.end();
    out.prompt_seconds = seconds_since(start);
    start = std::chrono::steady_clock::now();
  }
  if (!generator.idle()) out.text = generator.break_off(sequence, give);
  out.seconds = seconds_since(start);
  return out;
}

void report(const Options& options, const Generated& out, const Engine& engine) {
  const int64_t state_bytes = engine.state_bytes();
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
    if (!options.draft.empty()) json["draft"] = draft_json(engine);
    print_line(dump_json(json));
  } else {
    print_text((options.stream ? "" : options.prompt.value_or("") + out.text.text) + "\n");
  }
  std::string line = grouped(out.text.prompt_tokens) + " tokens of prompt" + (tokens > 0 ? " and the first token" : "") + " in " +
                     format_duration(out.prompt_seconds) + " (" + format_number(prefill, 1) + " tokens/s)";
  if (tokens > 1) line += ", then " + grouped(tokens - 1) + " tokens at " + format_number(decode, 1) + " tokens/s";
  print_message(line + describe(options, engine.draft_counts()) + "; state " + grouped(state_bytes) + " bytes");
}

// The options of an engine for one sequence. On a GPU a growing state gets a cache of fixed size, which a recorded step needs.
EngineOptions one_sequence_options(const Options& options, const Place& place) {
  EngineOptions engine = engine_options(options, place, 1);
  const ModelFiles stored = read_model_files(options.model);
  if (!grows(stored.config) || (place.device.is_cpu() && options.cache_tokens == 0)) return engine;
  engine.cache_tokens = most_cache_tokens(options, {stored.config, place.dtype.value_or(stored.dtype), place.device}, engine);
  return engine;
}

// The state of the prompt and the printed text, without the tokens that ended it. A state cannot be rolled back, so both are read again.
SequenceState state_before_stop(const Options& options, Engine& engine, TextGenerator& generator, TextRequest request,
                                const Generated& out) {
  engine.remove(out.sequence);
  request.options.max_tokens = 0;
  const Generated again = generate(options, engine, generator, std::move(request));
  if (again.text.finish_reason == "interrupted") throw Error("interrupted; no state was saved");
  return engine.snapshot(again.sequence);
}

void save_state(const Options& options, const TextModel& loaded, const SequenceState& state, const std::string& what_ended) {
  require_finite_logits(*loaded.model, state);
  save_sequence(options.save_state, state, loaded.hash);
  const bool stop = what_ended == "stop", holds_more = !options.before_stop && (stop || what_ended == "end_of_text");
  print_message("state saved in " + options.save_state +
                (holds_more ? std::string("; it holds ") + (stop ? "the tokens of the stop" : "the end-of-text token") +
                                  ", too, which --save-state-before-stop leaves out"
                            : ""));
}

void run_one(const Options& options, const Place& place) {
  if (!options.save_state.empty()) check_writable(options.save_state);
  EngineOptions settings = one_sequence_options(options, place);
  const TextModel loaded = load_text_model(options.model, place.dtype, place.device);
  const PromptDefaults defaults = defaults_of(options);
  const bool saves = !options.save_state.empty();
  const auto make_request = [&](const std::vector<int64_t>& more) {
    TextRequest request{encode_ids(*loaded.tokenizer, options.prompt.value_or("")), {}, defaults.options, defaults.stops};
    request.ids.insert(request.ids.end(), more.begin(), more.end());
    request.options.keep_state = saves || options.max_tokens == 0;
    if (!options.state.empty()) request.state = load_sequence(options.state, *loaded.model, loaded.hash);
    return request;
  };
  TextRequest request = make_request({});
  if (request.state && options.invariant && request.state->cells != describe_cells(*loaded.model))
    print_message(options.state + ": was not saved with --invariant by a model of this type on such a device; its text is read again");
  const auto prompt = static_cast<int64_t>(request.ids.size() + (request.state ? request.state->ids.size() : 0));
  const int64_t most = prompt + std::min(options.max_tokens, int64_t{1} << 62);
  require_positions(loaded.model->config(), most - 1, "the prompt and --max-tokens");  // the model does not read the last token
  if (options.cache_tokens == 0) settings.cache_tokens = std::min(most, settings.cache_tokens);
  Engine engine(*loaded.model, settings);
  TextGenerator generator(engine, *loaded.tokenizer);
  const Generated out = generate(options, engine, generator, std::move(request));
  report(options, out, engine);
  const std::string& why = out.text.finish_reason;
  if (why == "not_finite") throw Error(kLogitsNotFinite);
  const bool anew = saves && options.before_stop && (why == "stop" || why == "end_of_text");
  if (anew)
    save_state(options, loaded, state_before_stop(options, engine, generator, make_request(ids_of_text(*loaded.tokenizer, out.text)), out),
               why);
  else if (saves)
    save_state(options, loaded, engine.snapshot(out.sequence), why);
  else if (options.max_tokens == 0)
    require_finite_logits(*loaded.model, engine.snapshot(out.sequence));  // without sampling nothing has checked the logits
  if (why == "interrupted") throw Exit{1};
}

void run(const Options& options) {
  check(options);
  const Place place = parse_place(options.device, options.dtype);
  if (!options.draft.empty() && place.device.is_cuda() && options.slots > 1)
    throw UsageError("--draft on a GPU decodes one sequence at a time: use --slots 1, or leave out --slots or --draft");
  ProfileSession profile(options.profile, {.process = "based generate"});
  options.prompts.empty() ? run_one(options, place) : run_many(options, place);
  profile.finish();
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("--model", options->model, "the model's folder, for example the --out of `based train`");
  app.add_option("--prompt", options->prompt, "text to continue; after --state: text to add first");
  app.add_option("--prompts", options->prompts, "file of JSON lines {\"prompt\": \"…\"}; a line may also set max_tokens, seed, stop, …",
                 kPath);
  app.add_option("--out", options->out, "with --prompts: file for the results (default: standard output)", kPath);
  app.add_flag("--resume", options->resume,
               "with --prompts: continue a run into --out that was interrupted or ran out of disk space; needs the same options");
  app.add_option("--slots", options->slots, "with --prompts: concurrent sequences; 0: 8 on the CPU, 128 on a GPU, 1 with --draft there",
                 {0, 1 << 20});
  app.add_option("--cache-tokens", options->cache_tokens,
                 "for models whose state grows: size of the cache, in tokens of all concurrent sequences; 0: as many as they may need",
                 {0, int64_t{1} << 50});
  app.add_option("--state", options->state, "continue from this state file", kPath);
  app.add_option("--save-state", options->save_state, "file for the state after the last token; tokens of a --stop are included", kPath);
  app.add_flag("--save-state-before-stop", options->before_stop,
               "with --save-state: save the state without the tokens of a --stop or end of text; reads the prompt and the text again");
  app.add_option("--max-tokens", options->max_tokens, "tokens to generate", {0});
  app.add_option("--temperature", options->sampling.temperature, "sampling temperature; 0: always the most likely token");
  app.add_option("--top-k", options->sampling.top_k, "keep the k most likely tokens; 0: all");
  app.add_option("--top-p", options->sampling.top_p, "keep the most likely tokens up to this total probability");
  app.add_option("--min-p", options->sampling.min_p, "keep tokens with at least this share of the most likely token's probability");
  app.add_option("--repetition-penalty", options->sampling.repetition_penalty,
                 "above 1: tokens of the prompt and of the text are repeated less often");
  app.add_option("--presence-penalty", options->sampling.presence_penalty,
                 "subtracted from the logits of tokens that this command has generated, -2 to 2; above 0: they are repeated less often");
  app.add_option("--frequency-penalty", options->sampling.frequency_penalty,
                 "subtracted from a token's logit each time it has been generated, -2 to 2");
  app.add_option("--logit-bias", options->logit_bias,
                 "ID:NUMBER: add this number, -100 to 100, to the logit of this token; may be given several times");
  app.add_option(
      "--seed", options->sampling.seed,
      "the same seed and text give the same tokens; with --prompts, a line without a seed gets one computed from this seed and its index");
  app.add_option("--stop", options->stops, "stop before this text; may be given several times");
  app.add_option("--dtype", options->dtype, kDtypeHelp);
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_flag("--logprobs", options->logprobs,
               "also print each token's log-probability, before temperature and truncation (with --json or --prompts)");
  app.add_flag("--plain-steps", options->plain_steps, "on a GPU: use neither recorded steps nor fused kernels");
  app.add_flag("--invariant", options->invariant,
               "make a sequence's result depend, bit for bit, only on its tokens and the model, not on concurrent sequences or on how the "
               "prompt was split; slower");
  app.add_option(
      "--draft", options->draft,
      "guess the next tokens and verify them in one step, for the same text in less time: ngram, from the text's own repetitions, "
      "or the folder of a smaller model with the same tokenizer, which runs on the CPU; none: as ngram, but without "
      "drafts, to compare with on a GPU where steps with drafts round otherwise than those of a run without --draft "
      "(\"keeps_bits\" of --json is false)",
      kPath);
  app.add_option("--draft-tokens", options->draft_tokens,
                 "with --draft: the most tokens that a step verifies; 0: the same steps without drafts", {0, kMostDraftTokens});
  app.add_option("--profile", options->profile,
                 "file for a profile of this run, with a range of time for each step and layer; https://ui.perfetto.dev opens it", kPath);
  app.add_flag("--stream", options->stream, "print the text while it is generated");
  app.add_flag("--json", options->json, "print JSON; with --stream one line for each piece of text, then the summary");
  app.needs("--draft-tokens", "--draft");
  app.offer("--draft", {"ngram", "none"}, true);
  app.callback([options] {
    options->sampling.logit_bias = parse_logit_bias(options->logit_bias);
    run(*options);
  });
}

}  // namespace generate_command

const Command command_generate{"generate", "Continue prompts from a recurrent state", generate_command::setup};

}  // namespace based::apps
