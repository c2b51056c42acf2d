#include "based/serve/service/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>
#include <utility>
#include <vector>

namespace based {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;
const Buckets kFirstTokenBuckets{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
const Buckets kNextTokenBuckets{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2};
const Buckets kRequestBuckets{0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600};

}  // namespace

struct ServiceMetrics::State {
  struct Value {
    Kind kind = Kind::gauge;
    std::string name, help;
    std::function<double()> read;
  };
  prometheus::Registry registry;
  prometheus::Counter* prompt_tokens = nullptr;
  prometheus::Counter* cached_tokens = nullptr;
  prometheus::Counter* generation_tokens = nullptr;
  prometheus::Counter* succeeded = nullptr;
  prometheus::Counter* failed = nullptr;
  prometheus::Histogram* first_token = nullptr;
  prometheus::Histogram* next_token = nullptr;
  prometheus::Histogram* request = nullptr;
  mutable std::mutex mutex;  // guards `values`
  std::vector<Value> values;
};

ServiceMetrics::ServiceMetrics() : state_(std::make_unique<State>()) {
  prometheus::Registry& registry = state_->registry;
  const auto counter = [&](const char* name, const char* help) {
    return &prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
  };
  const auto histogram = [&](const char* name, const char* help, const Buckets& buckets) {
    return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  };
  state_->prompt_tokens = counter("prompt_tokens_total", "Tokens of prompts, with those that were not computed");
  state_->cached_tokens = counter("cached_prompt_tokens_total", "Tokens of prompts that a state had read before");
  state_->generation_tokens = counter("generation_tokens_total", "Sampled tokens");
  state_->succeeded = counter("request_success_total", "Generation requests that have ended normally");
  state_->failed = counter("request_failure_total", "Generation requests that were cancelled or have failed");
  state_->first_token = histogram("time_to_first_token_seconds", "From a request's arrival to its first token", kFirstTokenBuckets);
  state_->next_token = histogram("inter_token_latency_seconds", "Between two tokens of a choice", kNextTokenBuckets);
  state_->request = histogram("e2e_request_latency_seconds", "From a request's arrival to its last token", kRequestBuckets);
}

ServiceMetrics::~ServiceMetrics() = default;

void ServiceMetrics::add_prompt(int64_t tokens, int64_t cached_tokens) {
  state_->prompt_tokens->Increment(static_cast<double>(tokens));
  state_->cached_tokens->Increment(static_cast<double>(cached_tokens));
}

void ServiceMetrics::add_tokens(int64_t tokens) { state_->generation_tokens->Increment(static_cast<double>(tokens)); }
void ServiceMetrics::observe_first_token(double seconds) { state_->first_token->Observe(seconds); }
void ServiceMetrics::observe_next_token(double seconds) { state_->next_token->Observe(seconds); }

void ServiceMetrics::job_succeeded(double seconds) {
  state_->succeeded->Increment();
  state_->request->Observe(seconds);
}

void ServiceMetrics::job_failed() { state_->failed->Increment(); }

void ServiceMetrics::add_value(Kind kind, const std::string& name, const std::string& help, std::function<double()> read) {
  const std::lock_guard lock(state_->mutex);
  state_->values.push_back({kind, name, help, std::move(read)});
}

std::string ServiceMetrics::text() const {
  std::vector<prometheus::MetricFamily> families = state_->registry.Collect();
  const std::lock_guard lock(state_->mutex);
  for (const State::Value& value : state_->values) {
    prometheus::MetricFamily family;
    family.name = value.name;
    family.help = value.help;
    prometheus::ClientMetric metric;
    if (value.kind == Kind::counter) {
      family.type = prometheus::MetricType::Counter;
      metric.counter.value = value.read();
    } else {
      family.type = prometheus::MetricType::Gauge;
      metric.gauge.value = value.read();
    }
    family.metric.push_back(std::move(metric));
    families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace based
