#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include "based/c/handles.h"
#include "based/generate/memory.h"
#include "based/models/device.h"
#include "based/models/limits.h"
#include "based/models/tensor_view.h"

namespace based::c {
namespace {

constexpr int64_t kCacheStep = 4096;  // a GPU's cache has a multiple of this many tokens, so that engines fit more often

bool grows(const LanguageModel& model) { return model.make_state(1).grows(); }

// The options with the size of the cache. On a GPU, steps are only recorded if a growing state has a cache of fixed size.
EngineOptions with_cache(const Loaded& loaded, EngineOptions options, int64_t tokens) {
  const LanguageModel& model = loaded.model();
  if (options.cache_tokens > 0 || model.device().is_cpu() || !grows(model)) return options;
  const int64_t most = cache_tokens_that_fit({model.config(), model.dtype(), model.device()}, options);
  options.cache_tokens = std::min(tokens / kCacheStep * kCacheStep + kCacheStep, most);
  return options;
}

std::vector<int64_t> ids_of(const int64_t* ids, size_t count) {
  return count == 0 ? std::vector<int64_t>() : std::vector(ids, ids + count);
}

// Python's engine.py searches the file of the library for this text, because it must know the version before it loads the library.
constexpr std::string_view kBuiltWith = "based_torch_version=" TORCH_VERSION;

}  // namespace

ModelCall::ModelCall(Loaded& loaded) : lock_(loaded.mutex), no_autocast_(c10::autocast_dispatch_keyset) {
  const torch::Device device = loaded.model().device();
  if (!device.is_cpu()) stream_.emplace(c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device));
}

EngineLease::EngineLease(Loaded& loaded, EngineOptions options, int64_t tokens) : loaded_(loaded), options_(std::move(options)) {
  options_.decode.invariant = loaded.invariant;
  std::unique_ptr<Engine> idle = std::move(loaded.idle_engine);
  const EngineOptions& has = loaded.idle_options;
  const bool is_larger = options_.cache_tokens == 0 && !loaded.model().device().is_cpu() && has.cache_tokens >= tokens;
  const bool has_cache = is_larger || has.cache_tokens == options_.cache_tokens;
  if (idle && has.slots == options_.slots && has.decode.log_probabilities == options_.decode.log_probabilities && has_cache) {
    options_ = has;
    engine_ = std::move(idle);
    return;
  }
  idle.reset();  // its memory is free before that of the next engine is taken
  options_ = with_cache(loaded, options_, tokens);
  engine_ = std::make_unique<Engine>(loaded.model(), options_);
}

void EngineLease::give_back() {
  if (!engine_ || !engine_->idle()) return;
  loaded_.idle_engine = std::move(engine_);
  loaded_.idle_options = options_;
}

void require_ids(const LanguageModel& model, const std::vector<int64_t>& ids, const std::string& what) {
  try {
    based::require_ids(model.config(), ids, what);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

TextRequest request_of(const Loaded& loaded, const based_prompt& prompt, const char* name) {
  if (prompt.bytes > 0) require(prompt.text, "a prompt's text");
  if (prompt.count > 0) require(prompt.ids, "a prompt's ids");
  TextRequest request;
  if (prompt.state != nullptr) {
    if (prompt.state->loaded.get() != &loaded)
      throw UsageError(std::string(name) +
                       ": the state belongs to another model handle; based_state_bytes() and "
                       "based_state_from_bytes() copy it");
    request.state = *prompt.state->sequence;
  }
  if (prompt.bytes > 0) request.ids = encode_ids(*loaded.text.tokenizer, {prompt.text, prompt.bytes});
  const std::vector<int64_t> more = ids_of(prompt.ids, prompt.count);
  request.ids.insert(request.ids.end(), more.begin(), more.end());
  if (request.ids.empty() && !request.state) throw UsageError(std::string(name) + ": a prompt has no tokens; it needs at least one");
  require_ids(loaded.model(), request.ids, name);
  return request;
}

}  // namespace based::c

using namespace based::c;

const char* based_torch_version() { return kBuiltWith.data() + kBuiltWith.find('=') + 1; }

void based_load_options_init(based_load_options* options) {
  if (options != nullptr) *options = {sizeof *options, nullptr, nullptr, 0};
}

based_status based_model_load(const char* folder, const based_load_options* options, based_model** model) {
  return guarded([&] {
    require(folder, "based_model_load: folder");
    require(model, "based_model_load: model");
    const based_load_options with = complete(options, based_load_options_init, "based_load_options");
    const torch::Device device = based::parse_device(with.device == nullptr ? "cpu" : with.device, "based_load_options.device");
    std::optional<torch::Dtype> dtype;
    if (with.dtype != nullptr) dtype = based::parse_float_type(with.dtype, "based_load_options.dtype");
    auto loaded = std::make_shared<Loaded>();
    loaded->text = based::load_text_model(folder, dtype, device);
    loaded->folder = folder;
    loaded->device = device.str();
    loaded->dtype = based::float_type_name(loaded->model().dtype());
    loaded->invariant = with.invariant != 0;
    *model = new based_model{std::move(loaded)};
  });
}

void based_model_free(based_model* model) { delete model; }

based_status based_model_describe(const based_model* model, based_model_info* info) {
  return guarded([&] {
    require(model, "based_model_describe: model");
    require(info, "based_model_describe: info");
    Loaded& loaded = *model->loaded;
    const ModelCall call(loaded);
    based_model_info value{};
    value.vocab_size = loaded.model().config().vocab_size;
    value.parameters = loaded.model().parameter_count();
    try {
      const based::ModelState state = loaded.model().make_state(1);
      value.state_bytes = state.bytes();
      value.state_grows = state.grows() ? 1 : 0;
    } catch (const based::Error&) {
      value.state_bytes = -1;
    }
    value.end_of_text = loaded.text.tokenizer->end_of_text().value_or(-1);
    value.max_tokens = loaded.model().config().max_positions;
    value.hash = loaded.text.hash.c_str();
    value.device = loaded.device.c_str();
    value.dtype = loaded.dtype.c_str();
    copy_out(value, info, "based_model_info");
  });
}

based_status based_encode(const based_model* model, const char* text, size_t bytes, int64_t** ids, size_t* count) {
  return guarded([&] {
    require(model, "based_encode: model");
    if (bytes > 0) require(text, "based_encode: text");
    require(ids, "based_encode: ids");
    require(count, "based_encode: count");
    const std::vector<int64_t> all = based::encode_ids(*model->loaded->text.tokenizer, {bytes == 0 ? "" : text, bytes});
    *ids = static_cast<int64_t*>(allocate_copy(all.data(), all.size() * sizeof(int64_t)));
    *count = all.size();
  });
}

based_status based_decode(const based_model* model, const int64_t* ids, size_t count, char** text, size_t* bytes) {
  return guarded([&] {
    require(model, "based_decode: model");
    if (count > 0) require(ids, "based_decode: ids");
    require(text, "based_decode: text");
    require(bytes, "based_decode: bytes");
    const std::vector<int64_t> all = ids_of(ids, count);
    require_ids(model->loaded->model(), all, "based_decode");
    const std::string decoded = model->loaded->text.tokenizer->decode(std::vector<int32_t>(all.begin(), all.end()));
    *text = static_cast<char*>(allocate_copy(decoded.data(), decoded.size()));
    *bytes = decoded.size();
  });
}
