#include "based/serve/page/page.h"

#include <gtest/gtest.h>

#include "based/core/files.h"

namespace based {
namespace page_test {

TEST(Page, IsTheFileAndLoadsNothing) {
  EXPECT_EQ(page_html(), read_file(BASED_SOURCE_DIR "/based/serve/page/index.html"));
  EXPECT_LT(page_html().size(), 60'000U);
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_EQ(page_html().find(outside), std::string::npos) << outside;
  HttpRouter router;
  add_page_route(router);
  EXPECT_EQ(router.find("GET", "/").access, Access::everybody);
}

}  // namespace page_test
}  // namespace based
