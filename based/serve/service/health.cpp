#include "based/serve/service/health.h"

namespace based {
namespace {

constexpr const char* kHealthType = "application/json";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

void reply_unavailable(Responder& responder, const std::string& why) {
  responder.send(503, kHealthType, dump_json(ApiError::unavailable(why).to_json()), {{"Retry-After", "1"}});
}

}  // namespace

HttpRouter loading_router() {
  static constexpr const char* kLoading = "the model is being loaded";
  HttpRouter router;
  router.add(
      "GET", "/health", [](const HttpRequest&, const std::shared_ptr<Responder>& responder) { reply_unavailable(*responder, kLoading); },
      Access::on_io_thread);
  router.refuse_others(ApiError::unavailable(kLoading));
  return router;
}

void add_health_routes(HttpRouter& router, const Service& service, ServiceMetrics& metrics) {
  using Kind = ServiceMetrics::Kind;
  const auto gauge = [&](const char* name, const char* help, int64_t (Service::*read)() const) {
    metrics.add_value(Kind::gauge, name, help, [&service, read] { return static_cast<double>((service.*read)()); });
  };
  gauge("num_requests_running", "Generation requests with a sequence in a slot", &Service::running_jobs);
  gauge("num_requests_waiting", "Generation requests that wait for a slot", &Service::waiting_jobs);
  gauge("slots", "Sequences that can be decoded at the same time", &Service::slots);
  gauge("slots_free", "Slots without a sequence", &Service::free_slots);
  gauge("slot_state_bytes", "Bytes of the states in all slots", &Service::state_bytes);
  gauge("parked_state_bytes", "Bytes of the states of sequences that have given their slots to others", &Service::parked_bytes);
  router.add(
      "GET", "/health",
      [&service](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        if (service.draining()) return reply_unavailable(*responder, "the server is shutting down");
        responder->send(200, kHealthType, R"({"status":"ok"})");
      },
      Access::on_io_thread);
  router.add(
      "GET", "/metrics",
      [&metrics](const HttpRequest&, const std::shared_ptr<Responder>& responder) { responder->send(200, kMetricsType, metrics.text()); },
      Access::on_io_thread);
}

}  // namespace based
