// The figures of /metrics, in Prometheus' text format. Names that other engines have, too, are those of vLLM without its prefix.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace based {

class ServiceMetrics {
 public:
  ServiceMetrics();
  ~ServiceMetrics();
  ServiceMetrics(const ServiceMetrics&) = delete;
  ServiceMetrics& operator=(const ServiceMetrics&) = delete;

  // All functions may be called from any thread.
  void add_prompt(int64_t tokens, int64_t cached_tokens);  // a prompt has been read
  void add_tokens(int64_t tokens);                         // sampled
  void observe_first_token(double seconds);                // since the job was submitted
  void observe_next_token(double seconds);                 // since the token before
  void job_succeeded(double seconds);
  void job_failed();

  // A value that is read whenever the text is made: for the owners of queues, stores and caches.
  enum class Kind { gauge, counter };
  void add_value(Kind kind, const std::string& name, const std::string& help, std::function<double()> read);

  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace based
