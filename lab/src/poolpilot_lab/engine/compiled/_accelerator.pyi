from poolpilot_lab.engine.model.accelerator import Accelerator as Accelerator
