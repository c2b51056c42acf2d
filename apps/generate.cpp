#include <chrono>
#include <exception>

#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/generate/session.h"
#include "based/generate/text_model.h"
#include "based/generate/text_stream.h"
#include "based/models/device.h"
#include "based/models/limits.h"
#include "based/models/tensor_view.h"

namespace based::apps {
namespace {

struct Options {
  std::string model, prompt, state, save_state, dtype, device = "cpu";
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<std::string> stops;
  bool stream = false, json = false;
};

struct Generated {
  std::string text;
  std::vector<int64_t> ids;
  const char* finish = "length";
  double seconds = 0;
};

Generated generate(const Options& options, const Tokenizer& tokenizer, Session& session) {
  const InterruptScope interrupts;
  TextStream text(tokenizer, options.stops);
  Generated out;
  const auto give = [&](const std::string& piece) {
    out.text += piece;
    if (!options.stream || piece.empty()) return;
    if (options.json)
      print_line(dump_json({{"text", piece}}));
    else
      print_text(piece);
  };
  const auto start = std::chrono::steady_clock::now();
  while (static_cast<int64_t>(out.ids.size()) < options.max_tokens && !text.stopped()) {
    if (interrupted()) {
      out.finish = "interrupted";
      break;
    }
    const int64_t id = session.next(options.sampling);
    out.ids.push_back(id);
    if (tokenizer.end_of_text() == static_cast<int32_t>(id)) {
      out.finish = "end_of_text";
      break;
    }
    give(text.push(id));
  }
  give(text.finish());
  if (text.stopped()) out.finish = "stop";
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

// What kept the state from being saved, where it is to be: the text is given out all the same.
std::exception_ptr save_state(const Options& options, const Session& session, const std::string& hash) {
  try {
    if (!options.save_state.empty()) session.save(options.save_state, hash);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void run(const Options& options) {
  check_sampling_options(options.sampling);
  if (options.max_tokens < 0) throw UsageError("--max-tokens must not be negative");
  if (options.prompt.empty() && options.state.empty()) throw UsageError("generate needs --prompt TEXT or --state FILE");
  const auto dtype = options.dtype.empty() ? std::nullopt : std::optional(parse_float_type(options.dtype, "--dtype"));
  const torch::Device device = parse_device(options.device, "--device");
  if (!options.save_state.empty()) check_writable(options.save_state);
  const TextModel loaded = load_text_model(options.model, dtype, device);
  Session session(*loaded.model);
  if (!options.state.empty()) session.load(options.state, loaded.hash);
  const std::vector<int64_t> prompt = encode_ids(*loaded.tokenizer, options.prompt);
  const size_t prompt_tokens = session.ids().size() + prompt.size();
  const int64_t most = std::min(options.max_tokens, int64_t{1} << 62) + static_cast<int64_t>(prompt_tokens);
  require_positions(loaded.model->config(), most - 1, "the prompt and --max-tokens");  // the last token is not read
  session.append(prompt);
  const Generated out = generate(options, *loaded.tokenizer, session);
  const std::exception_ptr not_saved = save_state(options, session, loaded.hash);

  const double rate = out.seconds > 0 ? static_cast<double>(out.ids.size()) / out.seconds : 0;
  if (options.json)
    print_line(dump_json({{"text", out.text},
                          {"ids", out.ids},
                          {"prompt_tokens", prompt_tokens},
                          {"finish_reason", out.finish},
                          {"tokens_per_second", rate},
                          {"state_bytes", session.state().bytes()}}));
  else
    print_text((options.stream ? "" : options.prompt + out.text) + "\n");
  if (not_saved) std::rethrow_exception(not_saved);
  std::fprintf(stderr, "%zu tokens, %.1f tokens/s, state %lld bytes%s\n", out.ids.size(), rate,
               static_cast<long long>(session.state().bytes()),
               options.save_state.empty() ? "" : (", saved in " + options.save_state).c_str());
  if (std::string_view(out.finish) == "interrupted") throw Exit{1};
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("--model", options->model, "the model's folder, as `based train` leaves it");
  app.add_option("--prompt", options->prompt, "text to continue; after --state: text to add first");
  app.add_option("--state", options->state, "continue from this state file");
  app.add_option("--save-state", options->save_state, "write the state after the last token here");
  app.add_option("--max-tokens", options->max_tokens, "tokens to generate");
  app.add_option("--temperature", options->sampling.temperature, "0: the most likely token");
  app.add_option("--top-k", options->sampling.top_k, "keep the k most likely tokens; 0: all");
  app.add_option("--top-p", options->sampling.top_p, "keep the most likely tokens up to this probability");
  app.add_option("--min-p", options->sampling.min_p, "keep tokens with this share of the most likely one's probability");
  app.add_option("--repetition-penalty", options->sampling.repetition_penalty, "above 1: repeat less");
  app.add_option("--seed", options->sampling.seed, "the same seed and text give the same tokens");
  app.add_option("--stop", options->stops, "end before this text; may be given several times");
  app.add_option("--dtype", options->dtype, "fp32, bf16 or fp64 (default: as stored)");
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_flag("--stream", options->stream, "print text as it is made");
  app.add_flag("--json", options->json, "for machines; with --stream one line a piece, then the summary");
  app.callback([options] { run(*options); });
}

}  // namespace

const Command command_generate{"generate", "Continue a text from a recurrent state", setup};

}  // namespace based::apps
