// Lanes that exchange values: a warp.
constexpr unsigned subgroup_size = 32;
