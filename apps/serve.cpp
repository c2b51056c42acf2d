#include <algorithm>
#include <chrono>
#include <thread>

#include "apps/command.h"
#include "apps/output.h"
#include "apps/place.h"
#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/generate/cells.h"
#include "based/generate/memory.h"
#include "based/serve/endpoints/chats.h"
#include "based/serve/endpoints/completions.h"
#include "based/serve/endpoints/model_endpoints.h"
#include "based/serve/http/server.h"
#include "based/serve/page/page.h"
#include "based/serve/service/health.h"
#include "based/serve/states/endpoints.h"
#include "based/serve/states/prefix_cache.h"
#include "based/serve/states/seal.h"
#include "based/serve/states/state_store.h"

namespace based::apps {
namespace serve_command {

constexpr double kCloseSeconds = 5;  // for the last bytes of replies, after all jobs have ended
constexpr int kReplyThreads = 2;

struct Options {
  std::string model, name, dtype, device = "cpu", chat_template, state_folder, seal_key, profile;
  double drain_seconds = 30;
  HttpServerOptions http;
  ServiceOptions service;
  RequestLimits limits;
  StateStoreOptions states;
  PrefixCacheOptions prefixes;
};

// Everything of a server but its transport. Later members use earlier ones.
struct Parts {
  TextModel text_model;
  std::unique_ptr<FolderLock> lock;
  ServiceMetrics metrics;
  std::unique_ptr<StateStore> states;
  std::shared_ptr<PrefixCache> prefixes;
  std::unique_ptr<StateSeal> seal;
  std::unique_ptr<ServedModel> model;
  std::unique_ptr<TaskQueue> queue;
  std::unique_ptr<Service> service;
};

std::string model_name(const Options& options) {
  if (!options.name.empty()) return options.name;
  std::string path = options.model;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.find_last_of('/') + 1);
}

void check(const Options& options) {
  check_http_options(options.http);
  check_request_limits(options.limits);
  check_state_store_options(options.states);
  check_prefix_cache_options(options.prefixes);
  if (!(options.drain_seconds >= 0) || options.drain_seconds > 1e6) throw UsageError("--drain-seconds must be 0 to 1000000");
}

// On a GPU, the cache of a growing state has a fixed size, which recorded steps need: by default all memory that is free.
int64_t cache_tokens(const Options& options, const Place& place) {
  const ModelFiles stored = read_model_files(options.model);
  if (options.service.cache_tokens > 0 || !grows(stored.config) || place.device.is_cpu()) return options.service.cache_tokens;
  EngineOptions engine;
  engine.slots = options.service.slots > 0 ? options.service.slots : 128;
  engine.decode.invariant = options.service.invariant;
  return cache_tokens_that_fit({stored.config, place.dtype.value_or(stored.dtype), place.device, stored.form}, engine);
}

std::string made_folder(const std::string& folder, const std::string& name) {
  const std::string path = path_in(folder, name);
  make_folder(path);
  return path;
}

void load(const Options& options, const Place& place, Parts& parts) {
  ServiceOptions service = options.service;
  service.cache_tokens = cache_tokens(options, place);
  std::string states_folder, prefixes_folder;
  if (!options.state_folder.empty()) {
    make_folder(options.state_folder);
    parts.lock = std::make_unique<FolderLock>(options.state_folder);
    states_folder = made_folder(options.state_folder, "states");
    prefixes_folder = made_folder(options.state_folder, "prefixes");
  }
  parts.text_model = load_text_model(options.model, place.dtype, place.device);
  const LanguageModel& model = *parts.text_model.model;
  ServedModelOptions served;
  served.name = model_name(options);
  served.limits = options.limits;
  if (!options.chat_template.empty()) {
    served.chat_template = read_file(options.chat_template, uint64_t{1} << 20U);
    served.chat_template_file = options.chat_template;
  }
  parts.model = std::make_unique<ServedModel>(parts.text_model, std::move(served));
  parts.states = std::make_unique<StateStore>(model, parts.text_model.hash, options.states, states_folder);
  if (options.prefixes.memory_bytes > 0)
    parts.prefixes = std::make_shared<PrefixCache>(model, parts.text_model.hash, options.prefixes, prefixes_folder,
                                                   service.invariant ? describe_cells(model) : "");
  parts.seal = options.seal_key.empty() ? std::make_unique<StateSeal>() : std::make_unique<StateSeal>(options.seal_key);
  parts.queue = std::make_unique<TaskQueue>(kReplyThreads);
  TaskQueue& queue = *parts.queue;
  StepHooks hooks{[&queue] { queue.collect(); }, [&queue] { queue.flush(); }};
  parts.service = std::make_unique<Service>(parts.text_model, service, parts.prefixes, parts.metrics, std::move(hooks));
}

void add_store_metrics(Parts& parts) {
  using Kind = ServiceMetrics::Kind;
  const auto add_states = [&](Kind kind, const char* name, const char* help, int64_t StateStoreMetrics::*field) {
    parts.metrics.add_value(kind, name, help, [&store = *parts.states, field] { return static_cast<double>(store.metrics().*field); });
  };
  add_states(Kind::gauge, "states", "Stored states", &StateStoreMetrics::states);
  add_states(Kind::gauge, "state_bytes", "Bytes of stored states", &StateStoreMetrics::bytes);
  if (parts.prefixes == nullptr) return;
  const auto add_prefixes = [&](Kind kind, const char* name, const char* help, int64_t PrefixCacheMetrics::*field) {
    parts.metrics.add_value(kind, name, help, [&cache = *parts.prefixes, field] { return static_cast<double>(cache.metrics().*field); });
  };
  add_prefixes(Kind::gauge, "prefix_cache_entries", "States of prefixes", &PrefixCacheMetrics::entries);
  add_prefixes(Kind::gauge, "prefix_cache_memory_bytes", "Bytes of prefixes' states in memory", &PrefixCacheMetrics::memory_bytes);
  add_prefixes(Kind::gauge, "prefix_cache_disk_bytes", "Bytes of prefixes' states on disk", &PrefixCacheMetrics::disk_bytes);
  add_prefixes(Kind::counter, "prefix_cache_hits_total", "Prompts that started from a cached state", &PrefixCacheMetrics::hits);
  add_prefixes(Kind::counter, "prefix_cache_misses_total", "Prompts that did not", &PrefixCacheMetrics::misses);
  add_prefixes(Kind::counter, "prefix_cache_tokens_saved_total", "Prompt tokens that were not computed", &PrefixCacheMetrics::tokens_saved);
  add_prefixes(Kind::counter, "prefix_cache_evictions_total", "States of prefixes that were dropped", &PrefixCacheMetrics::evictions);
}

HttpRouter routes(const Options& options, Parts& parts) {
  HttpRouter router;
  add_health_routes(router, *parts.service, parts.metrics);
  add_store_metrics(parts);
  const GenerationContext context{*parts.model, *parts.service, *parts.queue, parts.states.get()};
  add_model_routes(router, *parts.model);
  add_completion_routes(router, context);
  add_chat_routes(router, context);
  const StateContext states{context, parts.text_model, *parts.seal,
                            state_body_bytes(*parts.text_model.model, options.limits, options.http)};
  add_state_routes(router, states);
  add_response_routes(router, states);
  add_page_route(router);
  return router;
}

void run(const Options& options) {
  check(options);
  const Place place = parse_place(options.device, options.dtype);
  ProfileSession profile(options.profile, {.process = "based serve"});
  const InterruptScope interrupts;
  Parts parts;
  HttpServer server(options.http, loading_router());
  server.start();
  load(options, place, parts);
  server.set_router(routes(options, parts));
  log_info("serving " + parts.model->name() + " at " + server.address());
  print_line(server.address());  // for programs that start a server with --port 0
  while (!interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  log_info("shutting down: requests in progress may take " + format_number(options.drain_seconds, 0) +
           " s (--drain-seconds); a second signal ends them at once");
  parts.service->drain(options.drain_seconds);
  server.stop(kCloseSeconds);
  profile.finish();
}

// "max_body_bytes" -> "--max-body-bytes"
std::string flag(const std::string& prefix, std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + prefix + field;
}

template <class Config>
void add_options(CommandLine& app, const std::string& prefix, Config& config) {
  config.visit([&](const char* name, auto& value, const char* help) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, bool>)
      app.add_flag(flag(prefix, name), value, help);
    else
      app.add_option(flag(prefix, name), value, help);
  });
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("--model", options->model, "the model's folder, for example the --out of `based train`");
  app.add_option("--name", options->name, "the model's name in requests and replies (default: the folder's name)");
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_option("--dtype", options->dtype, kDtypeHelp);
  app.add_option("--template", options->chat_template, "a file with a Jinja chat template; without it, chat requests are refused", kPath);
  app.add_option("--state-dir", options->state_folder,
                 "a folder for stored states and cached prefixes; without it, they are in memory only", kPath);
  app.add_option("--seal-key", options->seal_key,
                 "a file with the key of encrypted_content, 64 hexadecimal digits; without it, the key is random and lost at the end",
                 kPath);
  app.add_option("--drain-seconds", options->drain_seconds, "how long requests in progress may take after SIGTERM or Ctrl-C");
  app.add_option(
      "--profile", options->profile,
      "file for a profile, with a range of time for each request, step and layer, written at the end; https://ui.perfetto.dev opens it",
      kPath);
  add_options(app, "", options->http);
  add_options(app, "", options->service);
  add_options(app, "cache-", options->prefixes);
  add_options(app, "states-", options->states);
  add_options(app, "limit-", options->limits);
  app.callback([options] { run(*options); });
}

}  // namespace serve_command

const Command command_serve{"serve", "Serve a model over HTTP", serve_command::setup};

}  // namespace based::apps
