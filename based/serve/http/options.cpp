#include "based/serve/http/options.h"

#include "based/core/error.h"

namespace based {
namespace {

void require_http(bool right, const std::string& message) {
  if (!right) throw UsageError(message);
}

void require_at_least(const char* flag, double value, double least) {
  require_http(value >= least, std::string(flag) + " must be " + std::to_string(static_cast<int64_t>(least)) + " or more");
}

}  // namespace

void check_http_options(const HttpServerOptions& options) {
  require_http(options.port >= 0 && options.port <= 65535, "--port must be 0 to 65535, got " + std::to_string(options.port));
  require_http(options.tls_certificate.empty() == options.tls_key.empty(), "--tls-certificate and --tls-key go together");
  require_http(options.unix_path.empty() || options.tls_certificate.empty(), "--unix goes without --tls-certificate");
  require_http(options.unix_path.empty() || options.port == 0 || options.port == HttpServerOptions().port, "--unix goes without --port");
  require_at_least("--max-body-bytes", static_cast<double>(options.max_body_bytes), 1);
  require_http(options.max_total_body_bytes >= options.max_body_bytes, "--max-total-body-bytes must not be below --max-body-bytes");
  require_at_least("--max-header-bytes", static_cast<double>(options.max_header_bytes), 256);
  require_at_least("--max-connections", static_cast<double>(options.max_connections), 1);
  require_at_least("--max-write-queue-bytes", static_cast<double>(options.max_write_queue_bytes), 1024);
  require_at_least("--handler-threads", static_cast<double>(options.handler_threads), 1);
  require_http(options.handler_threads <= 256, "--handler-threads must be at most 256");
  require_at_least("--max-pending-handlers", static_cast<double>(options.max_pending_handlers), 1);
  for (const auto& [flag, seconds] : {std::pair{"--header-seconds", options.header_seconds},
                                      {"--body-seconds", options.body_seconds},
                                      {"--idle-seconds", options.idle_seconds},
                                      {"--write-seconds", options.write_seconds},
                                      {"--ping-seconds", options.ping_seconds}})
    require_http(seconds > 0 && seconds <= 1e6, std::string(flag) + " must be above 0 and at most 1000000");
  for (const std::string& origin : options.cors)
    require_http(origin == "*" || ((origin.starts_with("http://") || origin.starts_with("https://")) && !origin.ends_with('/')),
                 "--cors: '" + origin + "' is not an origin; write it as https://example.org, without a slash at the end");
}

}  // namespace based
