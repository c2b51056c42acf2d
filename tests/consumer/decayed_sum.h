#pragma once
#include "based/mixers/kit/mixer.h"

const based::MixerInfo& mixer_info_decayed_sum();
