// A program on a small input, layer by layer: as text for a terminal, and as SVG.
#pragma once
#include <string>
#include <vector>

#include "based/theory/statement.h"

namespace based::theory {

Drawing drawing_of(const Statement& statement);     // statement.can_be_drawn()
std::string draw_text(const Statement& statement);  // likewise
std::string draw_svg(const Statement& statement);

}  // namespace based::theory
