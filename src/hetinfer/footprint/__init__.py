"""Energy and carbon: `inputs`, `grid`, `power`, `carbon`, `comparison`, `study`, `findings`, `placement`."""
