// GET /health and /metrics.
#pragma once
#include <atomic>

#include "based/serve/http/router.h"
#include "based/serve/service/metrics.h"
#include "based/serve/service/service.h"

namespace based {

// /health replies 503 with the reason until a server is ready, and everything else 503.
HttpRouter loading_router();

// /health: 200 {"status":"ok"}, or 503 while the service drains. Both answer at once, also while all other threads are busy. Adds the
// service's gauges to the metrics. Both must outlive the router.
void add_health_routes(HttpRouter& router, const Service& service, ServiceMetrics& metrics);

}  // namespace based
