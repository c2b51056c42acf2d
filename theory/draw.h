// Draws a program on a small input, layer by layer, as text for a terminal and as SVG.
#pragma once
#include <string>
#include <vector>

#include "theory/statement.h"

namespace based::theory {

// All require statement.can_be_drawn().
Drawing drawing_of(const Statement& statement);
std::string draw_text(const Statement& statement);
std::string draw_svg(const Statement& statement);

}  // namespace based::theory
